//! The terminal: the command owns it where the init did, so that control characters reach it, and a shell above the
//! init keeps control of its jobs.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::Check;
use super::process::{Checked, HostPid, Mark, Stat, children, descendants, equal, eventually, mark, send};
use super::subject::Subject;

pub(crate) const CHECKS: &[Check] = &[
    ("r26_gives_the_terminal_to_the_command", interrupt, &[]),
    ("r26_leaves_a_terminal_of_another_namespace_right", unshared, &[]),
    ("r26_a_shell_inside_controls_its_jobs", inner_shell, &[]),
    ("r26_gives_the_terminal_back", back, &[]),
    ("r27_sends_no_signal_at_the_start", no_stray_signal, &[]),
    ("r28_does_not_stop_where_no_shell_could_wake_it", session_leader, &[]),
    ("r28_stops_and_continues_as_a_job", job, &[]),
    ("r28_leaves_the_terminal_alone_in_the_background", background, &[]),
    ("r28_takes_the_terminal_when_brought_to_the_front", foreground, &[]),
];

/// A command on a terminal of its own. Dropping it kills everything there.
struct Session {
    launcher: Child,
    master: File,
    output: Receiver<u8>,
    seen: String,
    _mark: Mark,
}

impl Session {
    /// Starts `words` as the leader of a session whose terminal the test holds.
    fn start(subject: &Subject, words: &[&str]) -> Checked<Self> {
        let failed = |error| format!("open a terminal: {error}");
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).map_err(failed)?;
        grantpt(&master).and_then(|()| unlockpt(&master)).map_err(failed)?;
        let name = ptsname(&master, Vec::new()).map_err(failed)?;
        let name = name.to_str().map_err(|error| error.to_string())?.to_owned();
        let slave =
            OpenOptions::new().read(true).write(true).open(&name).map_err(|error| format!("open {name}: {error}"))?;
        let stream = || slave.try_clone().map(Stdio::from).map_err(|error| error.to_string());
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(words).stdin(stream()?).stdout(stream()?).stderr(stream()?);
        command.env("PS1", "$ ").env("HISTFILE", "/dev/null").env("INPUTRC", "/dev/null").env("TERM", "dumb");
        subject.prepare(&mut command);
        let mark = mark(&mut command);
        let launcher = command.spawn().map_err(|error| format!("start {words:?}: {error}"))?;
        let master = File::from(master);
        let mut reader = master.try_clone().map_err(|error| error.to_string())?;
        let (sender, output) = channel();
        thread::spawn(move || {
            let mut byte = [0];
            // EIO: the last process on the terminal is gone.
            while matches!(reader.read(&mut byte), Ok(1)) && sender.send(byte[0]).is_ok() {}
        });
        Ok(Self { launcher, master, output, seen: String::new(), _mark: mark })
    }

    fn leader(&self) -> HostPid {
        self.launcher.id().cast_signed()
    }

    /// Types text.
    fn write(&mut self, text: &str) -> Checked {
        self.master.write_all(text.as_bytes()).map_err(|error| format!("type {text:?}: {error}"))
    }

    /// Waits until `text` was shown, takes everything up to it, and returns what came before it.
    fn expect(&mut self, text: &str) -> Checked<String> {
        let (output, seen) = (&self.output, &mut self.seen);
        let found = eventually(&format!("the terminal shows {text:?}"), || {
            seen.extend(output.try_iter().map(char::from));
            seen.contains(text)
        });
        found.map_err(|error| format!("{error}; it shows {:?}", self.seen))?;
        let (before, rest) = self.seen.split_once(text).unwrap_or_default();
        let (before, rest) = (before.to_owned(), rest.to_owned());
        self.seen = rest;
        Ok(before)
    }

    /// Waits until a process called `name` runs below the leader and has the terminal.
    fn foreground(&self, name: &str) -> Checked {
        let leader = self.leader();
        eventually(&format!("{name} has the terminal"), || {
            let all = descendants(leader).into_iter().filter_map(Stat::of);
            all.into_iter().any(|stat| stat.name == name && stat.foreground == stat.group && stat.state == "S")
        })
    }

    /// The exit code.
    fn wait(&mut self) -> Checked<Option<i32>> {
        let mut status = None;
        eventually("the command has ended", || {
            status = self.launcher.try_wait().ok().flatten();
            status.is_some()
        })?;
        Ok(status.and_then(|status| status.code()))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

/// The words that start the init, for a shell.
fn words(subject: &Subject) -> String {
    subject.words().join(" ")
}

/// An interactive shell in which the subject can be started as `init`.
fn shell(subject: &Subject) -> Checked<Session> {
    let mut session = Session::start(subject, &["bash", "--norc", "--noprofile", "-i"])?;
    session.write(&format!("init() {{ {} \"$@\"; }}; echo sh''ell\n", words(subject)))?;
    session.expect("shell")?;
    Ok(session)
}

/// Says when it is interrupted, and ends with 3.
const INTERRUPTIBLE: &str = "trap 'echo interrupted; exit 3' INT; echo ready; while :; do sleep 0.01; done";

fn interrupt(subject: &Subject) -> Checked {
    let init = subject.words();
    // As runc does it: PID 1 leads a session that has the terminal.
    let mut line = vec!["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "setsid", "--ctty"];
    line.extend(init.iter().map(String::as_str));
    line.extend(["sh", "-c", INTERRUPTIBLE]);
    let mut session = Session::start(subject, &line)?;
    session.expect("ready")?;
    session.write("\x03")?;
    session.expect("interrupted")?;
    equal("exit code", session.wait()?, Some(3))
}

fn unshared(subject: &Subject) -> Checked {
    let init = subject.words();
    let mut line = vec!["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    line.extend(init.iter().map(String::as_str));
    line.extend(["bash", "-c", "n=0; trap 'n=$((n+1)); echo seen $n' INT; echo ready; read x; echo got $x; exit $n"]);
    let mut session = Session::start(subject, &line)?;
    session.expect("ready")?;
    session.write("\x03")?;
    session.expect("seen 1")?;
    session.write("word\n")?;
    session.expect("got word")?;
    equal("interrupts", session.wait()?, Some(1))
}

/// From the keyboard: this line's job, which ends in a sleep, is stopped, brought back and interrupted.
fn control(session: &mut Session, line: &str) -> Checked {
    session.write(line)?;
    session.foreground("sleep")?;
    session.write("\x1a")?;
    session.expect("Stopped")?;
    session.write("fg\n")?;
    session.foreground("sleep")?;
    session.write("\x03")?;
    session.expect("^C").map(drop)
}

/// A shell with job control as the command: it says nothing about its terminal, and ^Z is its job's.
fn inner_shell(subject: &Subject) -> Checked {
    let init = subject.words();
    let mut line = vec!["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "setsid", "--ctty"];
    line.extend(init.iter().map(String::as_str));
    line.extend(["bash", "--norc", "--noprofile", "-i"]);
    let mut session = Session::start(subject, &line)?;
    session.write("echo sta''rted\n")?;
    let before = session.expect("started")?;
    equal("complaints about the terminal", before.contains("no job control") || before.contains("cannot set"), false)?;
    control(&mut session, "sleep 1000\n")?;
    session.write("echo co''de=$?; exit 7\n")?;
    session.expect("code=130")?;
    equal("exit code", session.wait()?, Some(7))
}

/// Neither HUP nor CONT comes with the terminal: blocked, they would be pending in the command.
fn no_stray_signal(subject: &Subject) -> Checked {
    let init = subject.words();
    let mut line = vec!["env", "--block-signal=HUP,CONT"];
    line.extend(init.iter().map(String::as_str));
    line.extend(["grep", "-E", "^(Shd|Sig)Pnd", "/proc/self/status"]);
    let mut session = Session::start(subject, &line)?;
    for kind in ["SigPnd:\t", "ShdPnd:\t"] {
        session.expect(kind)?;
        session.expect("0000000000000000")?;
    }
    equal("exit code", session.wait()?, Some(0))
}

/// The leader of a session, as of `docker exec -it` or `ssh -t`: no shell above it could wake it.
fn session_leader(subject: &Subject) -> Checked {
    let init = subject.words();
    let line: Vec<&str> = init.iter().map(String::as_str).chain(["cat"]).collect();
    let mut session = Session::start(subject, &line)?;
    session.foreground("cat")?;
    session.write("\x1a")?;
    let leader = session.leader();
    let is_stopped = |child: &HostPid| Stat::of(*child).is_some_and(|stat| stat.state == "T");
    eventually("the command is stopped", || children(leader).iter().any(is_stopped))?;
    for child in children(leader) {
        send(child, rustix::process::Signal::KILL);
    }
    equal("exit code", session.wait()?, Some(128 + 9))
}

fn job(subject: &Subject) -> Checked {
    let mut session = shell(subject)?;
    control(&mut session, &format!("{} sleep 1000\n", words(subject)))?;
    session.expect("$ ")?;
    session.write("echo co''de=$?\n")?;
    session.expect("code=130").map(drop)
}

fn background(subject: &Subject) -> Checked {
    let mut session = shell(subject)?;
    session.write(&format!("{} sed -u s/^/read:/ &\n", words(subject)))?;
    let leader = session.leader();
    let name = subject.process_name();
    let is_stopped = |stat: Stat| stat.name == name && stat.state == "T";
    eventually("the job is stopped for want of the terminal", || {
        descendants(leader).into_iter().filter_map(Stat::of).any(is_stopped)
    })?;
    session.write("echo al''ive\n")?;
    session.expect("alive")?;
    session.write("fg\n")?;
    session.foreground("sed")?;
    session.write("word\n")?;
    session.expect("read:word")?;
    session.write("\x03")?;
    session.expect("^C")?;
    session.expect("$ ")?;
    session.write("echo co''de=$?\n")?;
    session.expect("code=130").map(drop)
}

/// A job that runs in the background is brought to the front: the shell gives the terminal to the init without a word.
fn foreground(subject: &Subject) -> Checked {
    let mut session = shell(subject)?;
    let script = "'echo run''ning; until [ -e $0 ]; do sleep 0.01; done; read x; echo got $x'";
    let folder = tempfile::tempdir().map_err(|error| format!("make a folder: {error}"))?;
    let file = folder.path().join("go");
    session.write(&format!("{} bash -c {script} {} &\n", words(subject), file.display()))?;
    session.expect("running")?;
    session.write("fg\n")?;
    let (leader, name) = (session.leader(), subject.process_name());
    eventually("the init has the terminal", || {
        let all = descendants(leader).into_iter().filter_map(Stat::of);
        all.into_iter().any(|stat| stat.name == name && stat.foreground == stat.group)
    })?;
    std::fs::write(&file, "").map_err(|error| format!("write {}: {error}", file.display()))?;
    session.foreground("bash")?;
    session.write("word\n")?;
    session.expect("got word").map(drop)
}

fn back(subject: &Subject) -> Checked {
    // A script is no job control shell: it does not take the terminal back itself.
    let script = format!("{} true; echo ready; read x; echo got $x", words(subject));
    let mut session = Session::start(subject, &["sh", "-c", &script])?;
    session.expect("ready")?;
    session.write("word\n")?;
    session.expect("got word")?;
    equal("children", children(session.leader()).len(), 0)
}
