//! The command: how it is found and started, and how its end is passed on.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::Check;
use super::process::{Checked, Ended, as_child, ensure, equal, run};
use super::subject::{Ask, Kind, Subject};

/// Words of a long command line.
const WORDS: usize = 100_000;

/// A limit of the stack that makes command lines of 128 KiB the longest (execve(2)), and a line that does not fit.
const STACK: usize = 512 * 1024;
const LINE_MAX: usize = STACK / 4;

pub(crate) const CHECKS: &[Check] = &[
    ("r05_passes_every_exit_code", exit_codes, &[]),
    ("r05_passes_exit_codes_as_pid_1", exit_codes_of_pid1, &[]),
    ("r06_turns_a_killing_signal_into_128_and_its_number", killed, &[]),
    ("r07_turns_wanted_codes_into_0", remapped, &[Ask::Remap]),
    ("r08_says_127_where_the_command_is_missing", missing, &[]),
    ("r08_says_126_where_the_command_is_not_executable", not_executable, &[]),
    ("r08_names_command_and_reason_in_one_line", one_line, &[]),
    ("r08_searches_path_like_a_shell", search, &[]),
    ("r09_runs_a_script_without_interpreter_line", plain_script, &[]),
    ("r40_passes_arguments_as_bytes", bytes, &[]),
    ("bad_command_line_of_ours_is_one_line", our_line, &[Ask::OursOnly]),
    ("bad_command_line_too_long", too_long, &[]),
];

/// A file with this content and mode.
pub(crate) fn file(folder: &Path, name: &str, content: &str, mode: u32) -> Checked {
    let path = folder.join(name);
    fs::write(&path, content).map_err(|error| format!("write {}: {error}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(|error| error.to_string())
}

/// A folder that everybody may enter.
pub(crate) fn folder() -> Checked<tempfile::TempDir> {
    let folder = tempfile::tempdir().map_err(|error| format!("make a folder: {error}"))?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
    Ok(folder)
}

/// The exit code of the init as PID 1.
fn code(subject: &Subject, words: &[&str]) -> Checked<i32> {
    Ok(run(subject.pid1(words))?.code)
}

/// One line on stderr, nothing on stdout.
pub(crate) fn is_one_line(ended: &Ended) -> Checked {
    equal("stdout", ended.stdout.as_str(), "")?;
    ensure(ended.stderr.lines().count() == 1, format!("stderr: expected one line, found {:?}", ended.stderr))
}

fn exit_codes(subject: &Subject) -> Checked {
    // An emulator takes long to start.
    let step = if subject.kind == Kind::OursOnAarch64 { 17 } else { 1 };
    for expected in (0..=255).step_by(step) {
        equal("exit code", run(subject.child(&["sh", "-c", &format!("exit {expected}")]))?.code, expected)?;
    }
    Ok(())
}

fn exit_codes_of_pid1(subject: &Subject) -> Checked {
    for expected in [0, 1, 2, 42, 125, 126, 127, 128, 137, 143, 254, 255] {
        equal("exit code", code(subject, &["sh", "-c", &format!("exit {expected}")])?, expected)?;
    }
    Ok(())
}

fn killed(subject: &Subject) -> Checked {
    for number in [1, 2, 3, 6, 9, 11, 15, 31, 34, 40, 64] {
        let script = format!("/usr/bin/kill -s {number} $$; exec sleep 1000");
        // Who runs the tests by nohup(1) ignores HUP, and so would the command.
        let words = ["env", "--default-signal", "sh", "-c", &script];
        equal(&format!("signal {number}"), code(subject, &words)?, 128 + number)?;
    }
    Ok(())
}

fn remapped(subject: &Subject) -> Checked {
    let subject = subject.with_value(Ask::Remap, "143")?.with_value(Ask::Remap, "0")?.with_value(Ask::Remap, "255")?;
    let subject = subject.with_words(&["-e3"]);
    for (code, expected) in [(143, 0), (0, 0), (255, 0), (3, 0), (4, 4), (130, 130), (254, 254)] {
        equal(
            &format!("exit code for {code}"),
            self::code(&subject, &["sh", "-c", &format!("exit {code}")])?,
            expected,
        )?;
    }
    equal("exit code for TERM", code(&subject, &["sh", "-c", "kill -TERM $$; exec sleep 1000"])?, 0)?;
    equal("exit code for HUP", code(&subject, &["sh", "-c", "kill -HUP $$; exec sleep 1000"])?, 129)
}

fn missing(subject: &Subject) -> Checked {
    for name in ["no-such-command", "/no/such/command", ""] {
        equal(&format!("exit code for `{name}`"), code(subject, &[name])?, 127)?;
    }
    Ok(())
}

fn not_executable(subject: &Subject) -> Checked {
    let folder = folder()?;
    file(folder.path(), "plain", "exit 0\n", 0o644)?;
    let plain = folder.path().join("plain");
    for name in [&plain.display().to_string(), "/tmp"] {
        equal(&format!("exit code for `{name}`"), code(subject, &[name])?, 126)?;
    }
    let mut command = subject.pid1(&["plain"]);
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/bin", folder.path().display()));
    equal("exit code for one on PATH", run(command)?.code, 126)
}

/// Commands that cannot be executed, the code, and the reason.
const UNFIT: [(&str, i32, &str); 3] = [
    ("no-such-command", 127, "No such file or directory"),
    ("/etc/passwd/x", 127, "Not a directory"),
    ("/tmp", 126, "Permission denied"),
];

fn one_line(subject: &Subject) -> Checked {
    for (name, _, reason) in UNFIT {
        let ended = run(subject.pid1(&[name]))?;
        is_one_line(&ended)?;
        let has_both = ended.stderr.contains(name) && ended.stderr.contains(reason);
        ensure(has_both, format!("stderr: expected `{name}` and `{reason}` in {:?}", ended.stderr))?;
    }
    Ok(())
}

fn our_line(subject: &Subject) -> Checked {
    for (name, code, reason) in UNFIT {
        let ended = run(subject.pid1(&[name]))?;
        equal("code and stderr", (ended.code, ended.stderr), (code, format!("init: exec {name}: {reason}\n")))?;
    }
    Ok(())
}

fn plain_script(subject: &Subject) -> Checked {
    let folder = folder()?;
    file(folder.path(), "script", "echo \"$0 $1 $2\"\nexit 9\n", 0o755)?;
    let path = folder.path().join("script").display().to_string();
    let ended = run(subject.pid1(&[path.as_str(), "a b", "c"]))?;
    equal("exit code", ended.code, 9)?;
    equal("arguments", ended.stdout, format!("{path} a b c\n"))
}

fn search(subject: &Subject) -> Checked {
    let folder = folder()?;
    for (below, content, mode) in [("one", "exit 1\n", 0o644), ("two", "#!/bin/sh\nexit 2\n", 0o755)] {
        fs::create_dir(folder.path().join(below)).map_err(|error| error.to_string())?;
        file(&folder.path().join(below), "thing", content, mode)?;
    }
    let (top, system) = (folder.path().display(), "/usr/sbin:/usr/bin:/sbin:/bin");
    let cases = [
        (format!("{top}/none:{top}/one:{top}/two:{system}"), "", 2),
        (format!(":{system}"), "two", 2),
        (format!("{system}:"), "two", 2),
        (format!("two:{system}"), "", 2),
        (format!("/etc/passwd:{top}/two:{system}"), "", 2),
    ];
    for (path, below, expected) in cases {
        let mut command = subject.pid1(&["thing"]);
        command.current_dir(folder.path().join(below)).env("PATH", &path);
        equal(&format!("exit code with PATH={path}"), run(command)?.code, expected)?;
    }
    Ok(())
}

fn bytes(subject: &Subject) -> Checked {
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let mut command = subject.pid1(&["sh", "-c", "printf %s \"$1\" | od -An -tx1; echo $#", "sh"]);
    command.arg(odd).arg("").args(vec!["x"; WORDS]);
    equal("arguments", run(command)?.stdout.as_str(), " ff fe\n100002\n")
}

/// A command line that just fits the init, whose command is a script with a long first line, which does not.
fn too_long(subject: &Subject) -> Checked {
    let folder = folder()?;
    let script = folder.path().join("script").display().to_string();
    file(folder.path(), "script", &format!("#!/bin/sh -{}\n", "x".repeat(200)), 0o755)?;
    let start = |filler: usize| {
        let own = subject.words();
        let mut command = as_child("env");
        command.args(["-i", "/usr/bin/prlimit", &format!("--stack={STACK}")]).args(&own).arg(&script);
        // One word has at most 128 KiB itself.
        command.args(vec!["y".repeat(999); filler / 1000]).arg("y".repeat(filler % 1000));
        run(command)
    };
    let is_too_long_for_init = |ended: &Ended| ended.stderr.contains("prlimit");
    let (mut fits, mut too_long) = (0, LINE_MAX);
    while too_long - fits > 1 {
        let middle = usize::midpoint(fits, too_long);
        if is_too_long_for_init(&start(middle)?) { too_long = middle } else { fits = middle }
    }
    let ended = start(fits)?;
    equal("exit code", ended.code, 126)?;
    is_one_line(&ended)?;
    ensure(ended.stderr.contains("Argument list too long"), format!("stderr: {:?}", ended.stderr))
}

/// What a command prints, without its newline.
pub(crate) fn printed(command: Command) -> Checked<String> {
    Ok(run(command)?.stdout.trim_end().to_owned())
}
