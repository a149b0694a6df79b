//! What the command inherits: signal state, streams, environment. Whatever the init was given, it finds the same.

use super::Check;
use super::command::printed;
use super::process::{Checked, as_pid1, ensure, equal, run};
use super::subject::{Ask, Subject};

pub(crate) const CHECKS: &[Check] = &[
    ("r22_works_with_sigchld_ignored", sigchld_ignored, &[]),
    ("r22_works_with_sigchld_blocked", sigchld_blocked, &[]),
    ("r23_keeps_blocked_and_ignored_signals", signal_state, &[]),
    ("r23_keeps_sigchld_as_it_was", sigchld_state, &[]),
    ("r25_works_with_closed_standard_streams", closed_streams, &[]),
    ("r25_outlives_a_dead_pipe_on_stderr", dead_stderr, &[]),
    ("r25_outlives_a_dead_pipe_when_it_talks", dead_stderr_verbose, &[Ask::Verbose]),
    ("r30_hands_listen_pid_on", listen_pid, &[]),
    ("r30_leaves_the_listen_pid_of_others_alone", foreign_listen_pid, &[]),
    ("r32_prints_nothing_unless_asked", nothing_printed, &[]),
];

/// The exit code with `env` setting signals up, as PID 1 and as a child.
fn with_signals(subject: &Subject, setting: &str) -> Checked {
    let words = ["sh", "-c", "(true &); exit 5"];
    let setup = format!("exec env {setting}");
    for (place, script) in
        [("as PID 1", format!("{setup} \"$@\"")), ("below PID 1", format!("env {setting} \"$@\"; exit $?"))]
    {
        equal(&format!("exit code {place}"), run(subject.below_shell(&script, &words))?.code, 5)?;
    }
    Ok(())
}

fn sigchld_ignored(subject: &Subject) -> Checked {
    with_signals(subject, "--ignore-signal=CHLD")
}

fn sigchld_blocked(subject: &Subject) -> Checked {
    with_signals(subject, "--block-signal=CHLD")
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
    under.args(setting).args(subject.words()).args(state);
    subject.prepare(&mut under);
    let expected = run(bare)?.stdout;
    ensure(expected.lines().count() == 3 && !expected.contains("SigBlk:\t0000000000000000"), expected.clone())?;
    equal("signal state", run(under)?.stdout, expected)
}

fn closed_streams(subject: &Subject) -> Checked {
    for closed in ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"] {
        let setup = format!("exec {closed};");
        let words = ["sh", "-c", "exit 6"];
        equal(&format!("exit code with {closed} as PID 1"), run(subject.pid1_after(&setup, &words))?.code, 6)?;
        equal(&format!("exit code with {closed}"), run(subject.child_after(&setup, &words))?.code, 6)?;
    }
    Ok(())
}

/// Nobody reads stderr any more.
const DEAD: &str = "exec 2> >(exit); wait $!;";

/// The code is that of one that can say why.
fn dead_stderr(subject: &Subject) -> Checked {
    for name in ["true", "no-such-command"] {
        let expected = run(subject.child(&[name]))?.code;
        equal(&format!("exit code of {name}"), run(subject.child_after(DEAD, &[name]))?.code, expected)?;
    }
    Ok(())
}

fn dead_stderr_verbose(subject: &Subject) -> Checked {
    equal("exit code", run(subject.with(Ask::Verbose)?.child_after(DEAD, &["sh", "-c", "exit 4"]))?.code, 4)
}

fn listen_pid(subject: &Subject) -> Checked {
    // `$$` is what the init, executed by that shell, has as pid.
    let words = ["sh", "-c", "echo $LISTEN_PID $$"];
    for command in
        [subject.pid1_after("export LISTEN_PID=$$;", &words), subject.child_after("export LISTEN_PID=$$;", &words)]
    {
        let found = printed(command)?;
        let (listen, own) = found.split_once(' ').ok_or_else(|| format!("LISTEN_PID and pid: found {found:?}"))?;
        equal("LISTEN_PID", listen, own)?;
    }
    Ok(())
}

fn foreign_listen_pid(subject: &Subject) -> Checked {
    for value in ["7", "12345", "", "x"] {
        let setup = format!("export LISTEN_PID={value};");
        let found = printed(subject.pid1_after(&setup, &["sh", "-c", "echo $LISTEN_PID"]))?;
        equal("LISTEN_PID", found.as_str(), value)?;
    }
    Ok(())
}

fn nothing_printed(subject: &Subject) -> Checked {
    let script = "(true &); (sleep 0.05 &); trap 'exit 3' TERM; kill -TERM $PPID; while :; do :; done";
    let ended = run(subject.pid1(&["sh", "-c", script]))?;
    equal("exit code, stdout, stderr", (ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (3, "", ""))
}
