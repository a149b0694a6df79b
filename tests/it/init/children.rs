//! The command: how it is found and started, what it inherits, and how its end is passed on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::process::{Checked, HostPid, Running, as_child, as_pid1, ensure, equal, run, status_line};
use super::{Check, Peer, Subject};

pub(crate) const CHECKS: &[(&str, Check, Peer)] = &[
    ("passes_exit_codes", exit_codes, Peer::Passes),
    ("turns_a_killing_signal_into_128_and_its_number", killed, Peer::Passes),
    ("says_127_where_the_command_is_missing", missing, Peer::Passes),
    ("says_126_where_the_command_is_not_executable", not_executable, Peer::Passes),
    ("names_command_and_reason_in_one_line", one_line, Peer::Fails),
    ("runs_a_script_without_interpreter_line", plain_script, Peer::Passes),
    ("searches_path_like_a_shell", search, Peer::Passes),
    ("works_with_sigchld_ignored", sigchld_ignored, Peer::Fails),
    ("works_with_sigchld_blocked", sigchld_blocked, Peer::Passes),
    ("gives_the_command_the_signal_state_it_was_given", signal_state, Peer::Passes),
    ("gives_the_command_the_sigchld_state_it_was_given", sigchld_state, Peer::Fails),
    ("gives_the_command_its_descriptors_and_keeps_three", descriptors, Peer::Fails),
    ("works_with_closed_standard_streams", closed_streams, Peer::Fails),
    ("outlives_a_dead_pipe_on_stderr", dead_stderr, Peer::Fails),
    ("passes_arguments_as_bytes", bytes, Peer::Passes),
    ("refuses_a_wrong_command_line", wrong_command_line, Peer::Fails),
    ("shows_its_version_as_dockerd_reads_it", version, Peer::Fails),
];

/// A file that is gone when dropped.
fn file(folder: &Path, name: &str, content: &str, mode: u32) -> Checked {
    let path = folder.join(name);
    fs::write(&path, content).map_err(|error| format!("write {}: {error}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(|error| error.to_string())
}

fn folder() -> Checked<tempfile::TempDir> {
    let folder = tempfile::tempdir().map_err(|error| format!("make a folder: {error}"))?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
    Ok(folder)
}

/// The subject as PID 1 above `words`.
fn pid1(subject: &Subject, words: &[&str]) -> Command {
    let mut command = as_pid1(subject.program());
    command.args(&subject.0[1..]).args(words);
    command
}

fn code(subject: &Subject, words: &[&str]) -> Checked<i32> {
    Ok(run(pid1(subject, words))?.code)
}

/// The subject as PID 1, started by a shell that runs `setup` first.
fn after(setup: &str, subject: &Subject, words: &[&str]) -> Command {
    let mut command = as_pid1("bash");
    command.args(["-c", &format!("{setup} exec \"$@\""), "bash"]).args(&subject.0).args(words);
    command
}

fn exit_codes(subject: &Subject) -> Checked {
    for expected in [0, 1, 2, 42, 125, 126, 127, 128, 137, 143, 254, 255] {
        equal("exit code", code(subject, &["sh", "-c", &format!("exit {expected}")])?, expected)?;
    }
    Ok(())
}

fn killed(subject: &Subject) -> Checked {
    for number in [1, 2, 3, 6, 9, 11, 15, 31, 34, 40, 64] {
        let script = format!("/usr/bin/kill -s {number} $$; exec sleep 1000");
        equal(&format!("signal {number}"), code(subject, &["sh", "-c", &script])?, 128 + number)?;
    }
    Ok(())
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
    let mut command = pid1(subject, &["plain"]);
    command.env("PATH", format!("{}:/usr/sbin:/usr/bin:/bin", folder.path().display()));
    equal("exit code for one on PATH", run(command)?.code, 126)
}

fn one_line(subject: &Subject) -> Checked {
    for (name, code, reason) in [
        ("no-such-command", 127, "No such file or directory"),
        ("/etc/passwd/x", 127, "Not a directory"),
        ("/tmp", 126, "Permission denied"),
    ] {
        let ended = run(pid1(subject, &[name]))?;
        equal("exit code", ended.code, code)?;
        equal("stderr", ended.stderr, format!("init: exec {name}: {reason}\n"))?;
        equal("stdout", ended.stdout, String::new())?;
    }
    Ok(())
}

fn plain_script(subject: &Subject) -> Checked {
    let folder = folder()?;
    file(folder.path(), "script", "echo \"$0 $1 $2\"\nexit 9\n", 0o755)?;
    let path = folder.path().join("script").display().to_string();
    let ended = run(pid1(subject, &[&path, "a b", "c"]))?;
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
        (format!("{top}/one:{system}"), "", 126),
        (format!(":{system}"), "two", 2),
        (format!("{system}:"), "two", 2),
        (format!("two:{system}"), "", 2),
        (format!("/etc/passwd:{top}/two:{system}"), "", 2),
    ];
    for (path, below, expected) in cases {
        let mut command = pid1(subject, &["thing"]);
        command.current_dir(folder.path().join(below)).env("PATH", &path);
        equal(&format!("exit code with PATH={path}"), run(command)?.code, expected)?;
    }
    Ok(())
}

fn sigchld_ignored(subject: &Subject) -> Checked {
    let mut command = as_pid1("env");
    command.arg("--ignore-signal=CHLD").args(&subject.0).args(["sh", "-c", "(true &); exit 5"]);
    equal("exit code", run(command)?.code, 5)
}

fn sigchld_blocked(subject: &Subject) -> Checked {
    let mut command = as_pid1("env");
    command.arg("--block-signal=CHLD").args(&subject.0).args(["sh", "-c", "(true &); exit 5"]);
    equal("exit code", run(command)?.code, 5)
}

fn signal_state(subject: &Subject) -> Checked {
    same_signal_state(subject, ["--block-signal=USR1,40", "--ignore-signal=HUP,PIPE,41"])
}

fn sigchld_state(subject: &Subject) -> Checked {
    same_signal_state(subject, ["--block-signal=CHLD", "--ignore-signal=CHLD"])
}

/// The command finds blocked and ignored what it would find without an init.
fn same_signal_state(subject: &Subject, setting: [&str; 2]) -> Checked {
    let state = ["grep", "-E", "^Sig(Blk|Ign|Cgt):", "/proc/self/status"];
    let mut bare = as_pid1("env");
    bare.args(setting).args(state);
    let mut under = as_pid1("env");
    under.args(setting).args(&subject.0).args(state);
    let expected = run(bare)?.stdout;
    ensure(expected.lines().count() == 3 && !expected.contains("SigBlk:\t0000000000000000"), expected.clone())?;
    equal("signal state", run(under)?.stdout, expected)
}

/// The open descriptors of a process, in order.
fn open_descriptors(process: HostPid) -> Checked<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).map_err(|error| format!("list descriptors: {error}"))?;
    let mut found: Vec<i32> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    Ok(found)
}

fn descriptors(subject: &Subject) -> Checked {
    let running =
        Running::start(after("exec 7</etc/passwd 300</dev/null;", subject, &["sh", "-c", "echo ready; read x"]))?;
    running.ready()?;
    equal("descriptors of the init", open_descriptors(running.init()?)?, vec![0, 1, 2])?;
    let kept = open_descriptors(running.main_child()?)?;
    ensure(kept.contains(&7) && kept.contains(&300), format!("descriptors of the command: {kept:?}"))?;
    let folder = fs::read_link(format!("/proc/{}/cwd", running.init()?)).map_err(|error| error.to_string())?;
    equal("working directory of the init", folder.as_path(), Path::new("/"))?;
    equal("name of the init", status_line(running.init()?, "Name")?.as_str(), "dind-init")
}

fn closed_streams(subject: &Subject) -> Checked {
    for closed in ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"] {
        let command = after(&format!("exec {closed};"), subject, &["sh", "-c", "exit 6"]);
        equal(&format!("exit code with {closed}"), run(command)?.code, 6)?;
    }
    Ok(())
}

fn dead_stderr(subject: &Subject) -> Checked {
    let dead = "exec 2> >(exit); wait $!;";
    let verbose = subject.with_option("-v");
    for (subject, name, expected) in [(&verbose, "true", 0), (subject, "no-such-command", 127)] {
        let mut command = as_child("bash");
        command.args(["-c", &format!("{dead} exec \"$@\""), "bash"]).args(&subject.0).arg(name);
        equal(&format!("exit code of {name}"), run(command)?.code, expected)?;
    }
    Ok(())
}

fn bytes(subject: &Subject) -> Checked {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let mut command = pid1(subject, &["sh", "-c", "printf %s \"$1\" | od -An -tx1; echo $#", "sh"]);
    command.arg(odd).arg("").args(vec!["x"; 50_000]);
    equal("arguments", run(command)?.stdout.as_str(), " ff fe\n50002\n")
}

fn wrong_command_line(subject: &Subject) -> Checked {
    let cases: [(&[&str], &str); 4] = [
        (&["--nonsense", "true"], "init: unknown option --nonsense, see --help\n"),
        (&["-x", "true"], "init: unknown option -x, see --help\n"),
        (&["--"], "init: no command to run, see --help\n"),
        (&[], "init: no command to run, see --help\n"),
    ];
    for (arguments, message) in cases {
        let mut command = as_child(subject.program());
        command.args(subject.before_options()).args(arguments);
        let ended = run(command)?;
        equal("exit code", ended.code, 1)?;
        equal("output", (ended.stdout.as_str(), ended.stderr.as_str()), ("", message))?;
    }
    Ok(())
}

fn version(subject: &Subject) -> Checked {
    let mut command = as_child(subject.program());
    command.args(subject.before_options()).arg("--version");
    let ended = run(command)?;
    equal("exit code and stderr", (ended.code, ended.stderr.as_str()), (0, ""))?;
    // As parseInitVersion of moby's daemon/info_unix.go takes it apart.
    let line = ended.stdout.trim();
    let (version, commit) = line.split_once(" - ").ok_or_else(|| format!("version: no ` - ` in `{line}`"))?;
    ensure(version.starts_with("tini version "), format!("version: `{version}`"))?;
    let digits = commit.strip_prefix("git.").unwrap_or_default();
    ensure(digits.len() == 7 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), format!("commit: `{commit}`"))
}
