//! Orphans: none stays a zombie, whether the init is PID 1 or not, however many deaths one SIGCHLD stands for. Storms of
//! them are in storm.rs.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::process::{
    Checked, HostPid, Running, Stat, as_child, as_pid1, children, ensure, equal, eventually, run, send, zombies,
};
use super::subject::{Ask, Subject};
use super::{Check, Control, helper};

/// Orphans that a test makes.
pub(crate) const ORPHANS: usize = 40;

/// How long an orphan may stay a zombie, and how many are measured. The third fastest counts, so that a busy machine does
/// not: of an init that looks after its orphans once a second, three in 21 are that fast in one run of a thousand.
const ZOMBIE_FOR: Duration = Duration::from_millis(10);
const MEASURED: usize = 21;

/// How often a command is executed in a container, and what each leaves: 1,000 processes.
const EXECS: usize = 10;
const LEFT_BY_EXEC: usize = 100;

pub(crate) const CHECKS: &[Check] = &[
    ("r01_reaps_short_lived_orphans", short_lived, &[]),
    ("r01_reaps_within_10_ms", at_once, &[]),
    ("r02_adopts_orphans_where_it_is_not_pid_1", subreaper, &[]),
    ("r02_adopts_orphans_where_it_is_asked_to", asked_subreaper, &[Ask::Adopt]),
    ("r02_reaps_below_a_pid_1_that_does_not", below_a_careless_pid1, &[]),
    ("r02_is_silent_where_it_is_not_pid_1", silent, &[]),
    ("r03_reaps_the_orphans_of_execs_that_timed_out", orphans_of_execs, &[]),
    ("r04_reaps_all_for_one_sigchld", coalesced, &[]),
    ("r04_keeps_the_code_of_a_child_that_dies_among_orphans", main_child_among_orphans, &[]),
    ("r20_leaves_a_detached_survivor_behind", survivor, &[]),
    ("r21_minds_no_child_that_it_did_not_make", foreign_child, &[]),
    ("r33_tells_pid_and_name_of_an_orphan", warned, &[Ask::Warn]),
    ("r37_a_stopped_child_is_not_a_dead_one", stopped_child, &[]),
    ("r37_can_be_stopped_itself", stopped_init, &[]),
];

pub(crate) const CONTROLS: &[Control] = &[
    ("a_pid_1_that_never_reaps_keeps_every_zombie", never_reaping),
    ("an_init_that_reaps_one_per_sigchld_keeps_the_rest", one_per_sigchld),
    ("without_a_subreaper_orphans_go_elsewhere", no_subreaper),
];

/// A shell script: as many orphans as asked for, each running `command`; then one process that stays.
pub(crate) fn orphans(count: usize, command: &str) -> String {
    format!("i=0; while [ $i -lt {count} ]; do ({command} &); i=$((i+1)); done; echo ready; exec sleep 1000")
}

/// The children of `init` that are neither dead nor its main child.
pub(crate) fn living_orphans(init: HostPid, main: HostPid) -> Vec<HostPid> {
    let lives = |child: &HostPid| *child != main && Stat::of(*child).is_some_and(|stat| stat.state != "Z");
    children(init).into_iter().filter(lives).collect()
}

/// Whether a process is in a state of proc_pid_stat(5).
pub(crate) fn is_in(process: HostPid, state: &str) -> bool {
    Stat::of(process).is_some_and(|stat| stat.state == state)
}

fn short_lived(subject: &Subject) -> Checked {
    let running = Running::start(subject.pid1(&["sh", "-c", &orphans(ORPHANS, "true")]))?;
    running.ready()?;
    let init = running.init()?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    equal("zombies", zombies(init), 0)
}

fn at_once(subject: &Subject) -> Checked {
    let running = Running::start(subject.pid1(&["sh", "-c", &orphans(MEASURED, "sleep 1000")]))?;
    running.ready()?;
    let (init, main) = (running.init()?, running.main_child()?);
    eventually("all orphans are adopted", || living_orphans(init, main).len() == MEASURED)?;
    let mut taken = Vec::new();
    for orphan in living_orphans(init, main) {
        send(orphan, Signal::KILL);
        let start = Instant::now();
        // Not `eventually`, whose steps are as long as what is measured.
        while Stat::of(orphan).is_some() && start.elapsed() < Duration::from_secs(2) {}
        taken.push(start.elapsed());
    }
    taken.sort_unstable();
    ensure(taken[2] < ZOMBIE_FOR, format!("time to reap: expected {ZOMBIE_FOR:?} at most, found {taken:?}"))
}

fn never_reaping() -> Checked {
    // The shell does not wait for the job, and sleep for nobody.
    let mut command = as_pid1("sh");
    command.args(["-c", r#"sh -c "$1" & exec sleep 1000"#, "sh", &orphans(ORPHANS, "true")]);
    let running = Running::start(command)?;
    running.ready()?;
    let init = running.init()?;
    eventually("every orphan is a zombie", || zombies(init) == ORPHANS)
}

/// Stops the init, has all orphans die, and sees them all as zombies, or reaped by the kernel: one SIGCHLD is pending for
/// all of them, if any.
fn die_while_stopped(running: &Running, main: HostPid) -> Checked {
    running.ready()?;
    let init = running.init()?;
    eventually("all orphans are adopted", || living_orphans(init, main).len() == ORPHANS)?;
    send(init, Signal::STOP);
    eventually("the init is stopped", || is_in(init, "T"))?;
    for orphan in living_orphans(init, main) {
        send(orphan, Signal::KILL);
    }
    eventually("all orphans are dead", || living_orphans(init, main).is_empty())
}

fn coalesced(subject: &Subject) -> Checked {
    let running = Running::start(subject.pid1(&["sh", "-c", &orphans(ORPHANS, "sleep 1000")]))?;
    eventually("the main child runs", || running.main_child().is_ok())?;
    die_while_stopped(&running, running.main_child()?)?;
    let init = running.init()?;
    send(init, Signal::CONT);
    eventually("no zombie is left", || zombies(init) == 0)?;
    equal("children", children(init), vec![running.main_child()?])
}

fn one_per_sigchld() -> Checked {
    let words = helper::words("reap-one")?;
    let mut command = as_pid1(&words[0]);
    command.args(&words[1..]).args(["setsid", "sh", "-c", &orphans(ORPHANS, "sleep 1000")]);
    let running = Running::start(command)?;
    eventually("the main child runs", || running.main_child().is_ok())?;
    die_while_stopped(&running, running.main_child()?)?;
    let init = running.init()?;
    equal("zombies", zombies(init), ORPHANS)?;
    send(init, Signal::CONT);
    eventually("one zombie is reaped", || zombies(init) == ORPHANS - 1)
}

fn main_child_among_orphans(subject: &Subject) -> Checked {
    let running = Running::start(subject.pid1(&["sh", "-c", &orphans(ORPHANS, "sleep 1000")]))?;
    eventually("the main child runs", || running.main_child().is_ok())?;
    let (init, main) = (running.init()?, running.main_child()?);
    die_while_stopped(&running, main)?;
    send(main, Signal::TERM);
    eventually("the main child is dead, too", || Stat::of(main).is_none_or(|stat| stat.state == "Z"))?;
    send(init, Signal::CONT);
    equal("exit code", running.wait()?.code, 128 + 15)
}

/// Where the init is a child, its orphans come to it, and are reaped.
fn subreaper(subject: &Subject) -> Checked {
    let running = Running::start(subject.child(&["sh", "-c", &orphans(ORPHANS, "sleep 1000")]))?;
    eventually("the main child runs", || running.main_child().is_ok())?;
    let (init, main) = (running.init()?, running.main_child()?);
    running.ready()?;
    eventually("all orphans are adopted", || living_orphans(init, main).len() == ORPHANS)?;
    for orphan in living_orphans(init, main) {
        send(orphan, Signal::KILL);
    }
    eventually("the main child alone is left", || children(init) == [main])
}

fn asked_subreaper(subject: &Subject) -> Checked {
    subreaper(&subject.with(Ask::Adopt)?)
}

fn no_subreaper() -> Checked {
    let mut command = as_child("sh");
    command.args(["-c", &orphans(ORPHANS, "sleep 0.2")]);
    let running = Running::start(command)?;
    running.ready()?;
    equal("children", children(running.init()?).len(), 0)
}

fn below_a_careless_pid1(subject: &Subject) -> Checked {
    let script = orphans(ORPHANS, "true");
    let running = Running::start(subject.below_shell(r#""$@" & exec sleep 1000"#, &["sh", "-c", &script]))?;
    running.ready()?;
    let pid1 = running.init()?;
    let init = *children(pid1).first().ok_or("find the init: PID 1 has no child")?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    equal("zombies of PID 1", zombies(pid1), 0)
}

fn silent(subject: &Subject) -> Checked {
    let ended = run(subject.child(&["true"]))?;
    equal("exit code", ended.code, 0)?;
    equal("output", ended.stdout + &ended.stderr, String::new())
}

/// Commands that enter the container's namespace from outside and are killed for their time limit, as probes are.
fn orphans_of_execs(subject: &Subject) -> Checked {
    let running = Running::start(subject.pid1(&["sh", "-c", "echo ready; exec sleep 1000"]))?;
    running.ready()?;
    let (init, main) = (running.init()?, running.main_child()?);
    let script = format!("i=0; while [ $i -lt {LEFT_BY_EXEC} ]; do read x & i=$((i+1)); done; echo ready; read x");
    let mut held = Vec::new();
    for _ in 0..EXECS {
        let mut exec = as_child("nsenter");
        // The fork makes nsenter the parent, outside, as the shim is; jobs read from a pipe that stays open.
        exec.args([
            "--target",
            &init.to_string(),
            "--pid",
            "sh",
            "-c",
            &format!("exec 3<&0; {}", script.replace("read x &", "read x <&3 &")),
        ]);
        let exec = Running::start(exec)?;
        exec.ready()?;
        let inside = children(exec.init()?);
        send(*inside.first().ok_or("find the command executed: none")?, Signal::KILL);
        held.push(exec);
    }
    eventually("all are adopted", || living_orphans(init, main).len() == EXECS * LEFT_BY_EXEC)?;
    for orphan in living_orphans(init, main) {
        send(orphan, Signal::KILL);
    }
    eventually("the main child alone is left", || children(init) == [main])
}

/// The container ends with its command, whatever else lives in it.
fn survivor(subject: &Subject) -> Checked {
    let script = "setsid sleep 1000 <&- >&- 2>&- & sleep 1000 <&- >&- 2>&- & exit 7";
    for command in [subject.pid1(&["bash", "-c", script]), subject.pid1(&["sh", "-c", &format!("({script})")])] {
        equal("exit code", run(command)?.code, 7)?;
    }
    Ok(())
}

/// A child from before the init's execve, as a process substitution leaves it.
fn foreign_child(subject: &Subject) -> Checked {
    let script = "echo ready; read x; exit 5";
    let mut running = Running::start(subject.pid1_after("sh -c 'sleep 0.1; exit 9' & ", &["sh", "-c", script]))?;
    running.ready()?;
    let init = running.init()?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    equal("zombies", zombies(init), 0)?;
    running.tell("go")?;
    equal("exit code", running.wait()?.code, 5)
}

/// A line on stderr names the orphan that was reaped, as it was called.
fn warned(subject: &Subject) -> Checked {
    let script = "sh -c 'sleep 1000 & echo $!; exit 0'; echo ready; read x; exit 3";
    let mut running = Running::start(subject.with(Ask::Warn)?.pid1(&["sh", "-c", script]))?;
    let orphan = running.line()?;
    running.ready()?;
    let (init, main) = (running.init()?, running.main_child()?);
    let is_sleep = |child: &HostPid| Stat::of(*child).is_some_and(|stat| stat.name == "sleep");
    eventually("the orphan is adopted", || living_orphans(init, main).iter().any(is_sleep))?;
    living_orphans(init, main).into_iter().for_each(|orphan| send(orphan, Signal::KILL));
    eventually("the main child alone is left", || children(init) == [main])?;
    running.tell("go")?;
    let ended = running.wait()?;
    equal("exit code", ended.code, 3)?;
    let names_it = |line: &&str| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == orphan);
    let lines: Vec<&str> = ended.stderr.lines().filter(names_it).collect();
    equal("lines about the orphan", lines.len(), 1)?;
    ensure(lines[0].contains("sleep"), format!("the orphan's name: expected `sleep` in {:?}", lines[0]))
}

fn stopped_child(subject: &Subject) -> Checked {
    let mut running = Running::start(subject.pid1(&["sh", "-c", "echo ready; read x; exit 5"]))?;
    running.ready()?;
    let (init, main) = (running.init()?, running.main_child()?);
    for _ in 0..3 {
        send(main, Signal::STOP);
        eventually("the child is stopped", || is_in(main, "T"))?;
        // Whoever takes this for an end has left.
        eventually("the init waits", || is_in(init, "S"))?;
        send(main, Signal::CONT);
        eventually("the child goes on", || is_in(main, "S"))?;
    }
    running.tell("go")?;
    equal("exit code", running.wait()?.code, 5)
}

fn stopped_init(subject: &Subject) -> Checked {
    let mut running = Running::start(subject.pid1(&["sh", "-c", "echo ready; read x; exit 5"]))?;
    running.ready()?;
    let (init, main) = (running.init()?, running.main_child()?);
    for _ in 0..3 {
        send(init, Signal::STOP);
        eventually("the init is stopped", || is_in(init, "T"))?;
        send(init, Signal::CONT);
        eventually("the init waits", || is_in(init, "S"))?;
    }
    send(init, Signal::STOP);
    eventually("the init is stopped", || is_in(init, "T"))?;
    running.tell("go")?;
    eventually("the child is dead", || Stat::of(main).is_none_or(|stat| stat.state == "Z"))?;
    send(init, Signal::CONT);
    equal("exit code", running.wait()?.code, 5)
}
