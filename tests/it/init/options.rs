//! Command lines and variables that users of tini, docker-init, catatonit and dumb-init know, and wrong ones: one line on
//! stderr that names the thing, and exit code 1.

use std::process::Command;

use rustix::process::Signal;

use super::Check;
use super::command::is_one_line;
use super::process::{Checked, Running, as_child, children, ensure, equal, eventually, run, send, zombies};
use super::reaping::is_in;
use super::subject::{Ask, Subject};

pub(crate) const CHECKS: &[Check] = &[
    ("bad_no_command", no_command, &[]),
    ("bad_option", unknown_option, &[]),
    ("bad_value_of_e", bad_remap, &[Ask::Remap]),
    ("bad_value_of_p", bad_parent_death, &[Ask::ParentDeath]),
    ("bad_value_of_r", bad_rewrite, &[Ask::Rewrite]),
    ("bad_line_of_ours_names_the_thing", our_lines, &[Ask::OursOnly]),
    ("bad_variables_do_not_end_it", odd_variables, &[]),
    ("cli_version_as_dockerd_reads_it", version, &[Ask::Version]),
    ("cli_version_of_ours", our_version, &[Ask::OursOnly]),
    ("cli_help_on_stdout", help, &[Ask::Help]),
    ("cli_help_fits_one_screen", short_help, &[Ask::OursOnly]),
    ("cli_licence", licence, &[Ask::OursOnly]),
    ("cli_stops_at_the_command", stops_at_command, &[]),
    ("cli_combines_short_options", combined, &[Ask::Remap, Ask::Verbose]),
    ("cli_talks_on_stderr_only", talks, &[Ask::Verbose]),
    ("cli_tini_kill_process_group", group_by_variable, &[Ask::Remap]),
    ("cli_tini_subreaper", subreaper_by_variable, &[Ask::Adopt]),
    ("cli_tini_verbosity", verbosity, &[Ask::Remap]),
    ("cli_dumb_init_leads_a_session", session, &[Ask::DumbInitOnly]),
    ("cli_dumb_init_setsid_0", no_session, &[Ask::DumbInitOnly]),
    ("cli_catatonit_pauses", pause, &[Ask::Pause]),
    ("cli_no_subreaper", no_subreaper, &[Ask::OursOnly]),
];

/// Runs the init with these words behind its name.
fn bare(subject: &Subject, arguments: &[&str]) -> Checked<super::process::Ended> {
    run(subject.bare(arguments))
}

/// Exit code 1, something on stderr, nothing on stdout.
fn is_refused(subject: &Subject, arguments: &[&str]) -> Checked {
    let ended = bare(subject, arguments)?;
    equal(&format!("exit code and stdout of {arguments:?}"), (ended.code, ended.stdout.as_str()), (1, ""))?;
    ensure(!ended.stderr.is_empty(), format!("stderr of {arguments:?}: expected a reason, found nothing"))
}

fn no_command(subject: &Subject) -> Checked {
    is_refused(subject, &[])?;
    is_refused(subject, &["--"])
}

fn unknown_option(subject: &Subject) -> Checked {
    [["--nonsense", "true"], ["-x", "true"], ["-Z", "true"]].iter().try_for_each(|words| is_refused(subject, words))
}

fn bad_remap(subject: &Subject) -> Checked {
    for value in ["x", "256", "-1", "1x", ""] {
        is_refused(subject, &["-e", value, "true"])?;
    }
    is_refused(subject, &["-e"])
}

fn bad_parent_death(subject: &Subject) -> Checked {
    for value in ["NONSENSE", "SIGNONSENSE", "SIGTER", "", "65", "0", "-1"] {
        is_refused(subject, &["-p", value, "true"])?;
    }
    is_refused(subject, &["-p"])
}

fn bad_rewrite(subject: &Subject) -> Checked {
    for value in ["15", ":", "15:", ":15", "NONSENSE:15", "15:NONSENSE", "0:15", "65:15", "15:65", ""] {
        is_refused(subject, &["-r", value, "true"])?;
    }
    is_refused(subject, &["-r"])
}

/// A wrong line, and what the message has to name.
const WRONG: [(&[&str], &str); 26] = [
    (&[], "command"),
    (&["--"], "command"),
    (&["-g"], "command"),
    (&["--nonsense", "true"], "--nonsense"),
    (&["-x", "true"], "-x"),
    (&["-gx", "true"], "x"),
    (&["-e"], "-e"),
    (&["-e", "300", "true"], "300"),
    (&["-exyz", "true"], "xyz"),
    (&["-p"], "-p"),
    (&["-p", "SIGNONSENSE", "true"], "SIGNONSENSE"),
    (&["-p", "65", "true"], "65"),
    (&["-p", "RTMIN+31", "true"], "RTMIN+31"),
    (&["-r"], "-r"),
    (&["-r", "TERM", "true"], "TERM"),
    (&["-r", "TERM:NONSENSE", "true"], "NONSENSE"),
    (&["--rewrite=KILLER:TERM", "true"], "KILLER"),
    (&["--grace"], "--grace"),
    (&["--grace=", "true"], "--grace"),
    (&["--grace=5y", "true"], "5y"),
    (&["--grace", "ten", "true"], "ten"),
    (&["--grace=99999999999999999999s", "true"], "99999999999999999999s"),
    (&["--kill-after=-1", "true"], "-1"),
    (&["--kill-after", "ms", "true"], "ms"),
    (&["--all=yes", "true"], "--all"),
    (&["--wait-all=", "true"], "--wait-all"),
];

fn our_lines(subject: &Subject) -> Checked {
    let mut wrong = Vec::new();
    for (words, name) in WRONG {
        let ended = bare(subject, words)?;
        let is_right = ended.code == 1
            && is_one_line(&ended).is_ok()
            && ended.stderr.starts_with("init: ")
            && ended.stderr.contains(name);
        if !is_right {
            wrong.push(format!("{words:?} (names {name}): {ended:?}"));
        }
    }
    ensure(wrong.is_empty(), format!("wrong lines: {}", wrong.join("\n")))
}

/// A variable that somebody else set must not keep a container from starting.
fn odd_variables(subject: &Subject) -> Checked {
    let names = ["TINI_VERBOSITY", "TINI_SUBREAPER", "TINI_KILL_PROCESS_GROUP", "CATATONIT_DEBUG", "DUMB_INIT_SETSID"];
    for value in ["", "x", "-1", "99999999999999999999"] {
        let mut command = subject.pid1(&["sh", "-c", "exit 5"]);
        command.envs(names.map(|name| (name, value)));
        equal(&format!("exit code with `{value}`"), run(command)?.code, 5)?;
    }
    Ok(())
}

/// As parseInitVersion of moby's daemon/info_unix.go takes it apart.
fn version(subject: &Subject) -> Checked {
    let ended = bare(subject, &["--version"])?;
    equal("exit code", ended.code, 0)?;
    let line = ended.stdout.trim();
    let (version, commit) = line.split_once(" - ").map_or((line, None), |(version, commit)| (version, Some(commit)));
    ensure(version.starts_with("tini version "), format!("version: `{version}`"))?;
    let Some(commit) = commit else { return Ok(()) };
    ensure(commit.starts_with("git.") && commit.matches('.').count() == 1, format!("commit: `{commit}`"))
}

fn our_version(subject: &Subject) -> Checked {
    for option in ["--version", "-V"] {
        let ended = bare(subject, &[option])?;
        equal("exit code and stderr", (ended.code, ended.stderr.as_str()), (0, ""))?;
        let line = ended.stdout.trim();
        let (version, commit) = line.split_once(" - git.").ok_or_else(|| format!("version: no commit in `{line}`"))?;
        ensure(version.ends_with("_dind-init"), format!("version: `{version}`"))?;
        let is_commit = commit.len() == 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure(is_commit, format!("commit: `{commit}`"))?;
    }
    Ok(())
}

fn help(subject: &Subject) -> Checked {
    let ended = bare(subject, &["-h"])?;
    equal("exit code and stderr", (ended.code, ended.stderr.as_str()), (0, ""))?;
    ensure(ended.stdout.lines().count() > 1, format!("help: found {:?}", ended.stdout))
}

fn short_help(subject: &Subject) -> Checked {
    let ended = bare(subject, &["--help"])?;
    equal("exit code and stderr", (ended.code, ended.stderr.as_str()), (0, ""))?;
    let (lines, columns) = (ended.stdout.lines().count(), ended.stdout.lines().map(str::len).max().unwrap_or(0));
    ensure((2..=24).contains(&lines) && columns <= 80, format!("help: {lines} lines, {columns} columns"))?;
    let options = ["-s", "-g", "-c", "-p", "-e", "-r", "-v", "-w", "-l", "-h", "-V", "-P"];
    let long = ["--all", "--keep-pgrp", "--no-subreaper", "--grace", "--wait-all", "--kill-after"];
    let missing: Vec<_> = options.iter().chain(&long).filter(|option| !ended.stdout.contains(**option)).collect();
    ensure(missing.is_empty(), format!("help: {missing:?} are missing"))
}

fn licence(subject: &Subject) -> Checked {
    for option in ["-l", "-L"] {
        let ended = bare(subject, &[option])?;
        equal("exit code and stderr", (ended.code, ended.stderr.as_str()), (0, ""))?;
        ensure(
            ended.stdout.contains("MIT") && ended.stdout.contains("Apache"),
            format!("licence: {:?}", ended.stdout),
        )?;
    }
    Ok(())
}

fn stops_at_command(subject: &Subject) -> Checked {
    for words in [&["echo", "-l", "--version"][..], &["--", "echo", "-l", "--version"]] {
        let ended = bare(subject, words)?;
        equal("code and stdout", (ended.code, ended.stdout.as_str()), (0, "-l --version\n"))?;
    }
    Ok(())
}

fn combined(subject: &Subject) -> Checked {
    for words in
        [&["-vg"][..], &["-gv"], &["-e143"], &["-e", "143"], &["-ge143"], &["-vvv"], &["-g", "-e", "143", "-s"]]
    {
        let line = [words, &["--", "sh", "-c", "exit 5"]].concat();
        equal(&format!("exit code of {words:?}"), bare(subject, &line)?.code, 5)?;
    }
    let line = ["-ge143", "--", "sh", "-c", "exit 143"];
    equal("exit code that is mapped", bare(subject, &line)?.code, 0)
}

fn talks(subject: &Subject) -> Checked {
    let ended = run(subject.with(Ask::Verbose)?.pid1(&["sh", "-c", "(true &); exit 5"]))?;
    equal("exit code and stdout", (ended.code, ended.stdout.as_str()), (5, ""))?;
    ensure(!ended.stderr.is_empty(), "stderr: expected talk, found nothing")
}

/// Whether TERM to the init is heard by another process of the command's group; `variables` are set.
fn signals_group(mut command: Command, variables: &[(&str, &str)]) -> Checked<bool> {
    command.envs(variables.iter().copied());
    let mut running = Running::start(command)?;
    running.ready()?;
    send(running.init()?, Signal::TERM);
    let first = running.line()?;
    running.tell("go")?;
    Ok([first, running.line()?].contains(&"other heard".to_owned()))
}

/// Two processes of a group that tell when they hear TERM. Told to go, the first asks the other, in case it did not: a
/// shell takes the signal of the lower number first.
const GROUP: &str = "trap 'echo heard; read x; kill -WINCH $!; wait $!; exit' TERM
    bash -c 'trap \"echo other heard; exit\" TERM; trap \"echo other did not; exit\" WINCH; echo ready
        while :; do sleep 0.01; done' &
    while :; do sleep 0.01; done";

fn group_by_variable(subject: &Subject) -> Checked {
    let command = || subject.pid1(&["bash", "-c", GROUP]);
    equal("group by default", signals_group(command(), &[])?, false)?;
    for value in ["", "1", "0"] {
        equal("group by variable", signals_group(command(), &[("TINI_KILL_PROCESS_GROUP", value)])?, true)?;
    }
    Ok(())
}

fn subreaper_by_variable(subject: &Subject) -> Checked {
    let mut command = subject.child(&["sh", "-c", "(sleep 1000 &); echo ready; read x"]);
    command.env("TINI_SUBREAPER", "");
    let running = Running::start(command)?;
    running.ready()?;
    let init = running.init()?;
    eventually("the orphan is adopted", || children(init).len() == 2)
}

fn no_subreaper(subject: &Subject) -> Checked {
    let words = ["sh", "-c", "(sleep 0.3 &); echo ready; read x"];
    let running = Running::start(subject.with_words(&["--no-subreaper"]).child(&words))?;
    running.ready()?;
    equal("children", children(running.init()?).len(), 1)
}

fn verbosity(subject: &Subject) -> Checked {
    for (value, talks) in [("0", false), ("1", false), ("2", true), ("3", true)] {
        let mut command = subject.pid1(&["sh", "-c", "exit 5"]);
        command.env("TINI_VERBOSITY", value);
        let ended = run(command)?;
        equal("exit code", ended.code, 5)?;
        // tini talks on stdout, too, from 2 on.
        let found = !(ended.stdout + &ended.stderr).is_empty();
        equal(&format!("talk with {value}"), found, talks)?;
    }
    Ok(())
}

/// The init called as dumb-init.
fn as_dumb_init(subject: &Subject, options: &str, words: &[&str]) -> Command {
    let mut shell = as_child("bash");
    shell.args(["-c", &format!("exec -a /usr/bin/dumb-init \"$0\" {options} -- \"$@\"")]).args(subject.start());
    shell.args(words);
    subject.prepare(&mut shell);
    shell
}

/// The session of the command and its pid, as ps(1) shows them.
const SESSION: [&str; 3] = ["sh", "-c", "echo $(ps -o sid= -p $$) $$"];

fn leads_session(command: Command) -> Checked<bool> {
    let found = super::command::printed(command)?;
    let (session, own) = found.split_once(' ').ok_or_else(|| format!("session and pid: found {found:?}"))?;
    Ok(session == own)
}

fn session(subject: &Subject) -> Checked {
    equal("leads a session", leads_session(as_dumb_init(subject, "", &SESSION))?, true)?;
    equal("group", signals_group(as_dumb_init(subject, "", &["bash", "-c", GROUP]), &[])?, true)?;
    equal("group with -c", signals_group(as_dumb_init(subject, "-c", &["bash", "-c", GROUP]), &[])?, false)
}

fn no_session(subject: &Subject) -> Checked {
    let variable = [("DUMB_INIT_SETSID", "0")];
    let mut command = as_dumb_init(subject, "", &SESSION);
    command.envs(variable);
    equal("leads a session", leads_session(command)?, false)?;
    equal("group", signals_group(as_dumb_init(subject, "", &["bash", "-c", GROUP]), &variable)?, false)
}

fn pause(subject: &Subject) -> Checked {
    for signal in [Signal::TERM, Signal::INT] {
        let words = [subject.start(), vec!["-P".to_owned()]].concat();
        let mut command = super::process::as_pid1("bash");
        command.args(["-c", "sh -c 'sleep 0.2; exit 9' & exec \"$@\"", "bash"]).args(&words);
        subject.prepare(&mut command);
        let running = Running::start(command)?;
        eventually("the init runs", || running.init().is_ok())?;
        let init = running.init()?;
        eventually("the orphan is gone", || children(init).is_empty() && is_in(init, "S"))?;
        equal("zombies", zombies(init), 0)?;
        send(init, signal);
        equal("exit code", running.wait()?.code, 0)?;
    }
    Ok(())
}
