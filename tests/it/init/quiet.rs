//! What an init costs while nothing happens, and while the kernel reaps: wake-ups, memory, files.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use super::process::{Checked, HostPid, Running, Stat, children, ensure, equal, eventually, send_number, status_line};
use super::reaping::{ORPHANS, is_in, orphans};
use super::subject::{Ask, Kind, Subject};
use super::{Check, Control, helper, storm};

/// How long an idle init is watched. Nothing is waited for: that nothing happens is what is measured.
const IDLE_WINDOW: Duration = Duration::from_secs(3);

/// Most memory that ours has resident, in kB.
const RESIDENT_MAX: u64 = 40;

/// Starts of which the median counts.
const STARTS: usize = 5;

/// Linux that tells the status of a child that it reaped itself (PIDFD_INFO_EXIT).
const KERNEL_REAPS_SINCE: (u32, u32) = (6, 16);

pub(crate) const CHECKS: &[Check] = &[
    ("r29_keeps_no_descriptor_that_it_was_given", descriptors, &[]),
    ("r29_works_in_the_root", working_directory, &[]),
    ("r29_keeps_the_standard_streams", standard_streams, &[]),
    ("r31_does_not_wake_up_when_idle", idle, &[]),
    ("r31_sleeps_through_a_storm", asleep, &[Ask::KernelReaps]),
    ("r31_allocates_nothing", no_allocation, &[]),
    ("r31_has_no_heap", no_heap, &[]),
    ("r31_needs_40_kb", resident, &[]),
    ("r36_moves_between_control_groups", control_group, &[]),
    ("r39_is_one_static_file", one_file, &[]),
    ("r39_maps_nothing_writable_and_executable", no_writable_code, &[]),
];

pub(crate) const CONTROLS: &[Control] = &[
    ("tini_wakes_up_when_idle", tini_idle),
    ("a_program_that_allocates_is_seen", allocating),
    ("tini_needs_more_memory", tini_resident),
    ("tini_is_woken_by_a_storm", tini_asleep),
];

/// Whether this kernel is new enough to reap for an init that wants a status.
pub(crate) fn kernel_can_reap() -> Checked<bool> {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    let (major, minor) =
        numbers.next().zip(numbers.next()).ok_or_else(|| format!("read the kernel's version {release}"))?;
    Ok((major, minor) >= KERNEL_REAPS_SINCE)
}

/// The subject as PID 1 above a command that waits, both settled.
fn settled(subject: &Subject) -> Checked<Running> {
    settled_in(subject.pid1(&["sh", "-c", &orphans(ORPHANS, "true")]))
}

fn settled_in(command: Command) -> Checked<Running> {
    let running = Running::start(command)?;
    running.ready()?;
    let init = running.init()?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    eventually("the init sleeps", || is_in(init, "S"))?;
    Ok(running)
}

/// The open descriptors of a process, and what they are.
fn open_descriptors(process: HostPid) -> Checked<BTreeMap<i32, String>> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).map_err(|error| format!("list descriptors: {error}"))?;
    let target = |entry: &fs::DirEntry| fs::read_link(entry.path()).map(|path| path.display().to_string());
    let found = entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, target(&entry).unwrap_or_default())));
    Ok(found.collect())
}

fn descriptors(subject: &Subject) -> Checked {
    let script = "echo ready; read x";
    let running = Running::start(subject.pid1_after("exec 7</etc/passwd 300</dev/null;", &["sh", "-c", script]))?;
    running.ready()?;
    let init = running.init()?;
    // What the init opened itself to wait on has no file. The command may be quicker than the init, which closes the rest.
    eventually("the init has closed what it was given", || {
        open_descriptors(init)
            .is_ok_and(|kept| kept.iter().all(|(number, name)| *number <= 2 || name.starts_with("anon_inode:")))
    })?;
    let passed = open_descriptors(running.main_child()?)?;
    ensure(passed.contains_key(&7) && passed.contains_key(&300), format!("descriptors of the command: {passed:?}"))?;
    let own: Vec<_> = passed.iter().filter(|(_, name)| name.starts_with("anon_inode:")).collect();
    ensure(own.is_empty(), format!("descriptors of the init in the command: {own:?}"))
}

fn working_directory(subject: &Subject) -> Checked {
    let running = Running::start(subject.pid1_after("cd /usr/bin;", &["sh", "-c", "echo ready; read x"]))?;
    running.ready()?;
    let folder = |process| fs::read_link(format!("/proc/{process}/cwd")).map_err(|error| error.to_string());
    equal("working directory of the command", folder(running.main_child()?)?.as_path(), Path::new("/usr/bin"))?;
    let init = running.init()?;
    eventually("the init works in the root", || folder(init).is_ok_and(|folder| folder == Path::new("/")))
}

/// Users log to /proc/1/fd/1.
fn standard_streams(subject: &Subject) -> Checked {
    let mut running =
        Running::start(subject.pid1(&["sh", "-c", "echo ready; read x; echo said >/proc/1/fd/1; read x"]))?;
    running.ready()?;
    let (init, main) = (open_descriptors(running.init()?)?, open_descriptors(running.main_child()?)?);
    for number in 0..=2 {
        equal(&format!("descriptor {number}"), init.get(&number), main.get(&number))?;
    }
    running.tell("go")?;
    equal("line", running.line()?.as_str(), "said")
}

/// How often a process ran, of its own will or not.
fn switches(process: HostPid) -> Checked<u64> {
    let of = |name| status_line(process, name)?.parse::<u64>().map_err(|error| error.to_string());
    Ok(of("voluntary_ctxt_switches")? + of("nonvoluntary_ctxt_switches")?)
}

/// How often `init` ran in the window.
fn wake_ups(subject: &Subject) -> Checked<u64> {
    let running = settled(subject)?;
    let before = switches(running.init()?)?;
    thread::sleep(IDLE_WINDOW);
    Ok(switches(running.init()?)? - before)
}

fn idle(subject: &Subject) -> Checked {
    equal("wake-ups", wake_ups(subject)?, 0)
}

fn tini_idle() -> Checked {
    let count = wake_ups(&Kind::Tini.find()?)?;
    ensure(count > 0, "wake-ups: expected some, found none")
}

/// How often the init ran in a storm.
fn wake_ups_in_storm(subject: &Subject, count: usize) -> Checked<u64> {
    let script = format!("echo ready; read x; {}; echo ready; read x", storm::script(count));
    let mut running = Running::start(subject.pid1(&["sh", "-c", &script]))?;
    running.ready()?;
    let init = running.init()?;
    eventually("the init sleeps", || is_in(init, "S"))?;
    let before = switches(init)?;
    running.tell("go")?;
    running.ready()?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    Ok(switches(init)? - before)
}

fn asleep(subject: &Subject) -> Checked {
    equal("wake-ups in a storm", wake_ups_in_storm(subject, 2_000)?, 0)
}

fn tini_asleep() -> Checked {
    let count = wake_ups_in_storm(&Kind::Tini.find()?, 2_000)?;
    ensure(count > 0, "wake-ups in a storm: expected some, found none")
}

/// The memory map of a process.
fn maps(process: HostPid) -> Checked<String> {
    fs::read_to_string(format!("/proc/{process}/maps")).map_err(|error| format!("read the maps of {process}: {error}"))
}

/// Nothing is mapped, and no break moved, by a storm and every signal.
fn no_allocation(subject: &Subject) -> Checked {
    let script = format!("trap '' 1 2 3 10 12 15; echo ready; read x; {}; echo ready; read x", storm::script(500));
    let mut running = Running::start(subject.pid1(&["sh", "-c", &script]))?;
    running.ready()?;
    let init = running.init()?;
    eventually("the init sleeps", || is_in(init, "S"))?;
    let (data, map) = (status_line(init, "VmData")?, maps(init)?);
    for number in [1, 2, 3, 10, 12, 15] {
        send_number(init, number, &[])?;
    }
    running.tell("go")?;
    running.ready()?;
    eventually("the main child alone is left", || children(init).len() == 1)?;
    equal("memory for data", status_line(init, "VmData")?, data)?;
    equal("maps", maps(init)?, map)
}

fn allocating() -> Checked {
    let words = helper::words("allocate")?;
    let mut command = super::process::as_child(&words[0]);
    command.args(&words[1..]);
    let mut running = Running::start(command)?;
    running.ready()?;
    let (data, map) = (status_line(running.init()?, "VmData")?, maps(running.init()?)?);
    running.tell("go")?;
    running.ready()?;
    ensure(status_line(running.init()?, "VmData")? != data, "memory for data: expected more, found as much")?;
    ensure(maps(running.init()?)? != map && map.contains("[heap]"), "maps: expected others and a heap")
}

/// The break is where the program's data end.
fn no_heap(subject: &Subject) -> Checked {
    let running = settled(subject)?;
    let map = maps(running.init()?)?;
    ensure(!map.contains("[heap]"), format!("maps: expected no heap, found {map}"))
}

/// Resident memory in kB. The environment lies on the stack, and the one that cargo makes for tests has a page or two of its own.
fn resident_kb(subject: &Subject) -> Checked<u64> {
    let mut command = subject.pid1(&["sh", "-c", &orphans(ORPHANS, "true")]);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    subject.prepare(&mut command);
    let running = settled_in(command)?;
    let text =
        fs::read_to_string(format!("/proc/{}/smaps_rollup", running.init()?)).map_err(|error| error.to_string())?;
    let value =
        text.lines().find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?.trim().parse().ok());
    value.ok_or_else(|| format!("find Rss in {text}"))
}

/// Of several starts, as the kernel maps a page more or less of the file around those that are needed.
fn resident(subject: &Subject) -> Checked {
    let mut found = (0..STARTS).map(|_| resident_kb(subject)).collect::<Checked<Vec<_>>>()?;
    found.sort_unstable();
    let found = found[STARTS / 2];
    ensure(found <= RESIDENT_MAX, format!("resident: expected {RESIDENT_MAX} kB at most, found {found} kB"))
}

fn tini_resident() -> Checked {
    let found = resident_kb(&Kind::Tini.find()?)?;
    ensure(found > RESIDENT_MAX, format!("resident: expected more than {RESIDENT_MAX} kB, found {found} kB"))
}

/// The files that a process has mapped.
fn mapped_files(process: HostPid) -> Checked<Vec<String>> {
    let map = maps(process)?;
    let mut files: Vec<String> = map.lines().filter_map(|line| Some(line.get(line.find('/')?..)?.to_owned())).collect();
    files.dedup();
    Ok(files)
}

fn one_file(subject: &Subject) -> Checked {
    let running = settled(subject)?;
    let own = fs::canonicalize(subject.program()).map_err(|error| error.to_string())?.display().to_string();
    equal("files mapped", mapped_files(running.init()?)?, vec![own])
}

fn no_writable_code(subject: &Subject) -> Checked {
    let running = settled(subject)?;
    let map = maps(running.init()?)?;
    let wrong: Vec<&str> =
        map.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.contains("wx"))).collect();
    ensure(wrong.is_empty(), format!("maps: expected none that is writable and executable, found {wrong:?}"))
}

/// A group of this machine's, gone when dropped.
struct ControlGroup(std::path::PathBuf);

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// What moves a container's processes aside, as dockerd's entrypoint does on cgroup v2, finds nothing in its way.
fn control_group(subject: &Subject) -> Checked {
    let running = settled(subject)?;
    let (init, main) = (running.init()?, running.main_child()?);
    let text = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let own = text.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let below = if controllers.is_empty() { String::new() } else { "/pids".to_owned() };
        let folder = Path::new(&format!("/sys/fs/cgroup{below}{path}")).to_path_buf();
        (matches!(controllers, "" | "pids") && folder.join("cgroup.procs").is_file()).then_some(folder)
    });
    let own = own.ok_or("find the control group of this process")?;
    let group = ControlGroup(own.join(format!("dind-init-test-{init}")));
    fs::create_dir(&group.0).map_err(|error| format!("make {}: {error}", group.0.display()))?;
    let move_to = |folder: &Path| {
        [init, main].iter().try_for_each(|process| fs::write(folder.join("cgroup.procs"), process.to_string()))
    };
    move_to(&group.0).map_err(|error| format!("move in: {error}"))?;
    let inside = fs::read_to_string(group.0.join("cgroup.procs")).map_err(|error| error.to_string())?;
    equal("processes in the group", inside.lines().count(), 2)?;
    move_to(&own).map_err(|error| format!("move out: {error}"))?;
    fs::remove_dir(&group.0).map_err(|error| format!("remove the group: {error}"))?;
    equal("state of the init", Stat::of(init).map(|stat| stat.state), Some("S".to_owned()))
}
