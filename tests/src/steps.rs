//! The steps of the scenarios: short functions that put a container to work and say what they have seen. They must never
//! judge: what a leg has to show stands in the catalogue.

use crate::Error;
use crate::bench::{ARCHIVE, Bench, Daemon, PROBE, no_daemon};
use crate::engine::{Container, ContainerPid, ExitCode, Input, Process, Signal};
use crate::observe;
use crate::scenario::{Finding, Start, Want};
use crate::stage::{DOCKERD_BY_NAME, Stage};
use crate::wait::Wait;
use std::time::{Duration, Instant};

/// A container whose command ends by itself at once.
const SHORT_TIMEOUT: Duration = Duration::from_secs(20);
/// From TERM to the end: dockerd gives inner containers up to 15 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a container that ignores TERM is watched before that is taken for a fact.
const DEAF_TIMEOUT: Duration = Duration::from_secs(3);
/// How many inner containers run at once where the order does not matter.
const WIDTH: u32 = 4;
/// A pid file names a process of an earlier life, whose number is anybody's in the next. PID 1's is certainly taken there.
const PLANT: &str =
    "mkdir -p /run/docker/containerd && printf 1 | tee /run/docker.pid > /run/docker/containerd/containerd.pid";

/// Inner containers one after the other.
pub(crate) fn short_runs(bench: &Bench<'_>, want: &Want) -> Result<Finding, Error> {
    let before = bench.table()?;
    bench.run_many(want.runs, 1)?;
    counted(bench, want, &before)
}

fn counted(bench: &Bench<'_>, want: &Want, before: &[Process]) -> Result<Finding, Error> {
    Ok(Finding::zombies(bench.count(want.zombies.unwrap_or(0), before)?))
}

/// Many inner containers, some at a time; the tasks charged to the container afterwards tell the same as the count.
pub(crate) fn linear(bench: &Bench<'_>, want: &Want) -> Result<Finding, Error> {
    let before = bench.table()?;
    // Live threads are the daemon's own affair, so they are subtracted rather than allowed for by a tolerance.
    let dead = || bench.interrupt.until("a steady number of tasks", SHORT_TIMEOUT, || charged_to_the_dead(bench));
    let dead_before = dead()?;
    bench.run_many(want.runs, WIDTH)?;
    let finding = counted(bench, want, &before)?;
    let dead = dead()?.saturating_sub(dead_before);
    let live = |table: &[Process]| table.iter().filter(|process| process.state != 'Z').count();
    let (then, now) = (live(&before), live(&bench.table()?));
    let processes = if then == now { "as before".to_owned() } else { format!("{then}, then {now}") };
    Ok(finding.with("tasks charged to the dead", dead.to_string()).with("live processes", processes))
}

/// The pids controller's count less all live threads, once two readings around the table agree.
fn charged_to_the_dead(bench: &Bench<'_>) -> Result<Option<u64>, Error> {
    let charged = bench.container.tasks_charged()?;
    let live: u64 = bench.table()?.iter().filter(|process| process.state != 'Z').map(|process| process.threads).sum();
    let steady = charged == bench.container.tasks_charged()?;
    Ok(if steady { charged.checked_sub(live) } else { None })
}

/// Many sleepers that are killed by one command. Whoever adopts their shims stands still meanwhile, unless it is the daemon
/// itself, and so surely finds one SIGCHLD for all of them.
pub(crate) fn burst(bench: &Bench<'_>, want: &Want) -> Result<Finding, Error> {
    let before = bench.table()?;
    let names = std::sync::Mutex::new(Vec::new());
    bench.repeat(want.runs, WIDTH, || {
        let name = bench.start_sleeper()?;
        names.lock().map_err(|_| Error::Engine("start sleepers: a thread panicked".to_owned()))?.push(name);
        Ok(())
    })?;
    let names = names.into_inner().map_err(|_| Error::Engine("start sleepers: a thread panicked".to_owned()))?;
    let table = bench.table()?;
    let daemon =
        |pid: &ContainerPid| table.iter().any(|process| process.pid == *pid && process.comm == bench.daemon.comm());
    let mut adopters = observe::adopters(&table, bench.daemon.comm());
    adopters.retain(|pid| !daemon(pid));
    let all = |signal| adopters.iter().try_for_each(|pid| bench.container.signal(*pid, signal));
    all(Signal::Stop)?;
    let died = bench.kill_inner(&names);
    let died = if adopters.is_empty() { died } else { died.and_then(|()| await_ended(bench, &before)) };
    all(Signal::Continue)?;
    died?;
    counted(bench, want, &before)
}

/// As many orphans that end while PID 1 stands still, so that it surely finds one SIGCHLD for all of them.
pub(crate) fn burst_of_orphans(bench: &Bench<'_>, want: &Want) -> Result<Finding, Error> {
    let before = bench.table()?;
    bench.container.signal(ContainerPid::INIT, Signal::Stop)?;
    let left = bench.succeed(&[PROBE, "orphans", &want.runs.to_string()]).map(|_| ());
    let left = left.and_then(|()| await_ended(bench, &before));
    bench.container.signal(ContainerPid::INIT, Signal::Continue)?;
    left?;
    counted(bench, want, &before)
}

/// Waits until nothing that came since `before` lives; the dead may be zombies, or gone where the kernel itself reaps for PID 1.
fn await_ended(bench: &Bench<'_>, before: &[Process]) -> Result<(), Error> {
    let known = |process: &Process| before.iter().any(|old| (old.pid, old.start) == (process.pid, process.start));
    bench.interrupt.until("all orphans to have ended", SHORT_TIMEOUT, || {
        Ok(bench.table()?.iter().all(|process| process.state == 'Z' || known(process)).then_some(()))
    })
}

/// Commands entered from outside, as a health check does, each leaving an orphan.
pub(crate) fn outer_orphans(bench: &Bench<'_>, want: &Want) -> Result<Finding, Error> {
    let before = bench.table()?;
    bench.repeat(want.runs, 1, || bench.succeed(&[PROBE, "orphans", "1"]).map(|_| ()))?;
    counted(bench, want, &before)
}

/// An orphan within an inner container: a zombie of that container's PID 1, which no init outside can or may reap.
pub(crate) fn inner_orphan(bench: &Bench<'_>, want: &Want) -> Result<Finding, Error> {
    let before = bench.table()?;
    let sleeper = bench.start_sleeper()?;
    bench.exec_inner(&sleeper, &["orphans", "1"])?;
    let seen = bench.interrupt.until("a zombie of the inner container", SHORT_TIMEOUT, || {
        Ok((!observe::foreign_zombies(&bench.table()?, bench.daemon.comm()).is_empty()).then_some(()))
    });
    let seen = match seen {
        Ok(()) => "seen",
        Err(Error::Deadline { .. }) => "not seen",
        Err(error) => return Err(error),
    };
    let finding = counted(bench, want, &before)?.with("zombie of another parent", seen);
    bench.kill_inner(&[sleeper])?;
    Ok(finding)
}

/// TERM while an inner container runs that is deaf to it.
pub(crate) fn graceful_stop(bench: &Bench<'_>, _want: &Want) -> Result<Finding, Error> {
    bench.start_sleeper()?;
    let start = Instant::now();
    bench.container.signal(ContainerPid::INIT, Signal::Term)?;
    let code = bench.container.wait(STOP_TIMEOUT)?;
    let stop = start.elapsed();
    let log = bench.container.log()?.to_lowercase();
    // dockerd: "Processing signal 'terminated'"; containerd: "stop" of its services, with the signal before it at debug level.
    let logged = log.contains("processing signal 'terminated'") || log.contains("stop cri service");
    let finding = Finding { stop: Some(stop), ..Finding::default() };
    Ok(finding.with("exit code", code.to_string()).with("shutdown logged", if logged { "yes" } else { "no" }))
}

/// TERM to a container whose command does nothing about it.
pub(crate) fn stop_command(bench: &Bench<'_>, _want: &Want) -> Result<Finding, Error> {
    let start = Instant::now();
    bench.container.signal(ContainerPid::INIT, Signal::Term)?;
    let code = bench.container.wait(STOP_TIMEOUT)?;
    let finding = Finding { stop: Some(start.elapsed()), ..Finding::default() };
    Ok(finding.with("exit code", code.to_string()))
}

/// The command is killed, and not by PID 1.
pub(crate) fn kill_command(stage: &Stage<'_>, _want: &Want) -> Result<Finding, Error> {
    let container = stage.start(Start::Image, Input::Nothing)?;
    let command = await_process(stage, &*container, Daemon::Sleeper.comm())?;
    container.signal(command, Signal::Kill)?;
    let code = container.wait(SHORT_TIMEOUT)?;
    container.remove()?;
    Ok(Finding::default().with("exit code", code.to_string()))
}

/// TERM while the entrypoint still makes keys, long before any daemon could hear it.
pub(crate) fn stop_while_starting(stage: &Stage<'_>, _want: &Want) -> Result<Finding, Error> {
    let container = stage.start_with_tls()?;
    await_process(stage, &*container, "openssl")?;
    container.signal(ContainerPid::INIT, Signal::Term)?;
    let ended = container.wait(DEAF_TIMEOUT);
    container.remove()?;
    match ended {
        Ok(code) => Ok(Finding::default().with("after TERM", format!("ended with {code}"))),
        Err(Error::Deadline { .. }) => Ok(Finding::default().with("after TERM", "runs on")),
        Err(error) => Err(error),
    }
}

/// The outer container killed in mid-life and started again, in the image's own way.
pub(crate) fn restart(stage: &Stage<'_>, want: &Want) -> Result<Finding, Error> {
    restarted(stage, want, Start::Image)
}

/// The same with the daemon in the entrypoint's place: then nothing but the init removes pid files.
pub(crate) fn restart_daemon(stage: &Stage<'_>, want: &Want) -> Result<Finding, Error> {
    match stage.daemon() {
        Daemon::Dockerd => restarted(stage, want, Start::Entrypoint(DOCKERD_BY_NAME)),
        Daemon::Containerd => restarted(stage, want, Start::Entrypoint(&["containerd"])),
        Daemon::Sleeper => no_daemon(),
    }
}

/// The first restart is beside pid files that name a living process; from then on they hold what the daemons have written. The
/// first after which no daemon answers is the last.
fn restarted(stage: &Stage<'_>, want: &Want, start: Start) -> Result<Finding, Error> {
    let mut container = stage.start(start, Input::Nothing)?;
    let daemon = stage.daemon();
    let bench = stage.bench(&*container, daemon);
    bench.prepare()?;
    // An inner container whose shim, socket and pid file are left behind, too.
    bench.start_sleeper()?;
    bench.succeed(&["sh", "-c", PLANT])?;
    let mut unanswered = None;
    for restart in 1..=want.runs {
        container.kill_and_restart()?;
        if !comes_up(&stage.bench(&*container, daemon))? {
            unanswered = Some(restart);
            break;
        }
    }
    if unanswered.is_none() {
        stage.bench(&*container, daemon).run_once()?;
    }
    container.remove()?;
    let unanswered = unanswered.map_or("none".to_owned(), |restart| restart.to_string());
    Ok(Finding::default().with("first restart without an answer", unanswered))
}

fn comes_up(bench: &Bench<'_>) -> Result<bool, Error> {
    match bench.await_answer() {
        Ok(()) => Ok(true),
        Err(Error::Image(_)) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Another init above or below ours: nothing left, nothing said, and one TERM ends all.
pub(crate) fn double_init(bench: &Bench<'_>, want: &Want) -> Result<Finding, Error> {
    let finding = short_runs(bench, want)?.with("tini's warning", tini_warning(bench)?);
    bench.container.signal(ContainerPid::INIT, Signal::Term)?;
    let code = bench.container.wait(STOP_TIMEOUT)?;
    Ok(finding.with("exit code after one TERM", code.to_string()))
}

/// What a tini that is not PID 1 has to say, where the image starts one.
pub(crate) fn init_below(bench: &Bench<'_>, _want: &Want) -> Result<Finding, Error> {
    if !bench.table()?.iter().any(|process| process.comm == "docker-init") {
        return Err(Error::Inapplicable("the image's entrypoint starts no docker-init".to_owned()));
    }
    Ok(Finding::default().with("tini's warning", tini_warning(bench)?))
}

fn tini_warning(bench: &Bench<'_>) -> Result<&'static str, Error> {
    Ok(if bench.container.log()?.contains("[WARN  tini") { "said" } else { "not said" })
}

/// Exit codes through the image's entrypoint.
pub(crate) fn exit_codes(stage: &Stage<'_>, _want: &Want) -> Result<Finding, Error> {
    let commands: [(&str, &'static [&'static str]); 4] = [
        ("sh -c 'exit 0'", &["sh", "-c", "exit 0"]),
        ("sh -c 'exit 3'", &["sh", "-c", "exit 3"]),
        ("/no/such", &["/no/such"]),
        ("/etc/passwd", &["/etc/passwd"]),
    ];
    codes(stage, &commands)
}

/// The same in an image that has no shell.
pub(crate) fn exit_codes_of_probe(stage: &Stage<'_>, _want: &Want) -> Result<Finding, Error> {
    let commands: [(&str, &'static [&'static str]); 5] = [
        ("0", &[PROBE, "exit", "0"]),
        ("3", &[PROBE, "exit", "3"]),
        ("255", &[PROBE, "exit", "255"]),
        ("/no/such", &["/no/such"]),
        ("no program", &[ARCHIVE]),
    ];
    codes(stage, &commands)
}

/// Deaths by signal. Not for a shell as PID 1: the kernel drops what would kill a namespace's init from within.
pub(crate) fn signal_codes(stage: &Stage<'_>, _want: &Want) -> Result<Finding, Error> {
    let commands: [(&str, &'static [&'static str]); 2] =
        [("TERM", &["sh", "-c", "kill -TERM $$"]), ("KILL", &["sh", "-c", "kill -KILL $$"])];
    codes(stage, &commands)
}

fn codes(stage: &Stage<'_>, commands: &[(&str, &'static [&'static str])]) -> Result<Finding, Error> {
    let mut finding = Finding::default();
    for (name, words) in commands {
        let container = stage.start(Start::Args(words), Input::Nothing)?;
        let code = container.wait(SHORT_TIMEOUT);
        container.remove()?;
        finding = finding.with(name, code?.to_string());
    }
    Ok(finding)
}

/// A script on standard input: it is read to its end, and only its output is seen.
pub(crate) fn standard_input(stage: &Stage<'_>, _want: &Want) -> Result<Finding, Error> {
    let container = stage.start(Start::Args(&["sh"]), Input::Bytes(b"echo hi\nexit 5\n".to_vec()))?;
    let code = container.wait(SHORT_TIMEOUT)?;
    let output = container.log()?;
    container.remove()?;
    Ok(Finding::default().with("output", output.trim_end()).with("exit code", code.to_string()))
}

/// A shell on a terminal: Ctrl-C ends what runs in the foreground, not the shell.
pub(crate) fn terminal(stage: &Stage<'_>, _want: &Want) -> Result<Finding, Error> {
    let container = stage.start(Start::Args(&["sh"]), Input::Terminal)?;
    container.type_in(b"sleep 1000\n")?;
    await_process(stage, &*container, "sleep")?;
    container.type_in(b"\x03")?;
    let gone = stage.interrupt.until("the end of what Ctrl-C was for", SHORT_TIMEOUT, || {
        Ok((!container.processes()?.iter().any(|process| process.comm == "sleep")).then_some(()))
    });
    let interrupted = match gone {
        Ok(()) => "ended",
        Err(Error::Deadline { .. }) => "runs on",
        Err(error) => return Err(error),
    };
    container.type_in(b"exit 7\n")?;
    let code = container.wait(SHORT_TIMEOUT)?;
    container.remove()?;
    Ok(Finding::default().with("foreground after Ctrl-C", interrupted).with("exit code", code.to_string()))
}

/// What the image's program inherits: signal masks and open files.
pub(crate) fn inheritance(stage: &Stage<'_>, _want: &Want) -> Result<Finding, Error> {
    // The shell that every image has, waiting for a line: another program's runtime may change what it was given before it is looked at.
    let container = stage.start(Start::Args(&["sh", "-c", "read line; exit"]), Input::Terminal)?;
    let pid = await_process(stage, &*container, "sh")?;
    let status = container.status(pid)?;
    container.remove()?;
    let files: Vec<String> = status.files.iter().map(|file| file.fd.to_string()).collect();
    Ok(Finding::default()
        .with("blocked signals", status.blocked)
        .with("ignored signals", status.ignored)
        .with("open files", files.join(" ")))
}

fn await_process(stage: &Stage<'_>, container: &dyn Container, comm: &str) -> Result<ContainerPid, Error> {
    stage.interrupt.until(&format!("a process `{comm}` in the container"), SHORT_TIMEOUT, || {
        if let Some(ExitCode(code)) = container.ended()? {
            let log = container.log()?;
            return Err(Error::Image(format!("wait for `{comm}`: the container ended with {code}: {}", log.trim())));
        }
        Ok(container.processes()?.iter().find(|process| process.comm == comm).map(|process| process.pid))
    })
}
