//! Sets a container up from inside fresh namespaces and becomes its PID 1 by exec. Everything is mounted in the
//! container's own mount namespace, so that the kernel takes it away with the last process. It must never write to the
//! host's file system, and never fork: the image's program must find itself as PID 1 with no child.

use crate::spec::{Device, Mount, Process, Spec, What};
use crate::{Outcome, launch, loopback, storage};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::{Mode, SFlag, makedev, mknod, umask};
use nix::unistd;
use serde_json::json;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Where the old root hangs between pivot_root(2) and its end; inside the directory that holds the suite's own files.
const OLD_ROOT: &str = "/.suite/old";
/// As docker reports them: the command was not found; it was found but cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Why a command could not be run, and the exit code that docker gives for it.
pub(crate) struct Refusal {
    pub code: u8,
    pub reason: String,
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Refusal { code, reason: error.to_string() }
    }
}

/// Returns only where the container could not be started; the reason stands in the report too.
pub(crate) fn run(spec: &str) -> Outcome {
    // The other half of a container's life line: its wrapper dies with the suite, and PID 1 with its wrapper.
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|errno| format!("set the parent-death signal: {errno}"))?;
    let spec: Spec =
        serde_json::from_str(spec).map_err(|error| format!("parse the container's description: {error}"))?;
    // Opened close-on-exec, as std opens all files: its end of file tells the reader that exec has happened.
    let mut report = OpenOptions::new()
        .write(true)
        .open(&spec.report)
        .map_err(|error| format!("open report {}: {error}", spec.report.display()))?;
    // The procfs seen here is still the host's, so its `self` names the pid that the host knows.
    let name = fs::read_link("/proc/self").map_err(|error| format!("read /proc/self: {error}"))?;
    let pid: i32 = name.to_string_lossy().parse().map_err(|_| format!("read /proc/self: found {}", name.display()))?;
    tell(&mut report, &json!({ "pid": pid }));

    if let Err(message) = set_up(&spec) {
        tell(&mut report, &json!({ "error": message }));
        return Err(message);
    }
    let refusal = exec(&spec.process);
    // Not an error of the set-up: docker reports such a command by its exit code too.
    eprintln!("probe: {}: {}", spec.process.argv.join(" "), refusal.reason);
    Ok(ExitCode::from(refusal.code))
}

fn tell(report: &mut File, line: &serde_json::Value) {
    // A reader that is gone has given the container up: it is about to be killed, and nobody is left to tell.
    let _ = writeln!(report, "{line}");
}

fn set_up(spec: &Spec) -> Result<(), String> {
    umask(Mode::empty());
    unistd::sethostname(&spec.hostname).map_err(|errno| format!("set hostname: {errno}"))?;
    loopback::up()?;
    launch::join(&spec.groups)?;
    // Only now, so that the container's groups are the roots that it sees (cgroup_namespaces(7)).
    unshare(CloneFlags::CLONE_NEWCGROUP).map_err(|errno| format!("make a cgroup namespace: {errno}"))?;
    change_root(spec)?;
    for (number, entry) in spec.mounts.iter().enumerate() {
        let volume = storage::volumes(spec).join(number.to_string());
        attach(entry, &outside(&volume)).map_err(|message| format!("mount {}: {message}", entry.target.display()))?;
    }
    for device in &spec.devices {
        make_device(device)?;
    }
    for link in &spec.links {
        symlink(&link.target, &link.path).map_err(|error| format!("link {}: {error}", link.path.display()))?;
    }
    umount2(OLD_ROOT, MntFlags::MNT_DETACH).map_err(|errno| format!("detach the old root: {errno}"))?;
    fs::remove_dir(OLD_ROOT).map_err(|error| format!("remove {OLD_ROOT}: {error}"))?;
    umask(Mode::from_bits_truncate(0o022));
    Ok(())
}

/// The storage's overlay becomes the root, in a copy of the storage's mount namespace.
fn change_root(spec: &Spec) -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| format!("make a mount namespace: {errno}"))?;
    let root = storage::root(spec);
    let old = root.join(OLD_ROOT.trim_start_matches('/'));
    make_directories(&old)?;
    unistd::pivot_root(&root, &old).map_err(|errno| format!("change root to {}: {errno}", root.display()))?;
    unistd::chdir("/").map_err(|errno| format!("enter /: {errno}"))
}

/// What was reached by `path` before the root was changed.
fn outside(path: &Path) -> PathBuf {
    Path::new(OLD_ROOT).join(path.strip_prefix("/").unwrap_or(path))
}

/// `volume` is where the mount's content is kept, should it be a volume.
fn attach(entry: &Mount, volume: &Path) -> Result<(), String> {
    let target = entry.target.as_path();
    match &entry.what {
        What::Kernel { fstype, data } => {
            make_directories(target)?;
            let data = Some(data.as_str()).filter(|data| !data.is_empty());
            mount(Some(fstype.as_str()), target, Some(fstype.as_str()), MsFlags::empty(), data)
                .map_err(|errno| format!("{fstype}: {errno}"))
        }
        What::Volume => {
            make_directories(target)?;
            if !volume.exists() {
                let covered = fs::metadata(target).map_err(|error| error.to_string())?.permissions().mode() & 0o7777;
                fs::create_dir(volume).map_err(|error| format!("make {}: {error}", volume.display()))?;
                set_mode(volume, covered)?;
            }
            mount(Some(volume), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .map_err(|errno| format!("volume: {errno}"))
        }
        What::Bind { source } => bind(source, target),
    }
}

fn bind(source: &Path, target: &Path) -> Result<(), String> {
    let outside = outside(source);
    if outside.is_dir() {
        make_directories(target)?;
    } else {
        make_directories(target.parent().unwrap_or(Path::new("/")))?;
        if !target.exists() {
            File::create(target).map_err(|error| error.to_string())?;
        }
    }
    mount(Some(&outside), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|errno| format!("bind {}: {errno}", source.display()))?;
    let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, target, None::<&str>, read_only, None::<&str>)
        .map_err(|errno| format!("make read-only: {errno}"))
}

/// Missing directories are made with mode 0755; those that exist keep theirs.
fn make_directories(path: &Path) -> Result<(), String> {
    let missing: Vec<PathBuf> = path.ancestors().take_while(|part| !part.exists()).map(Path::to_path_buf).collect();
    for directory in missing.iter().rev() {
        fs::create_dir(directory).map_err(|error| format!("make {}: {error}", directory.display()))?;
        set_mode(directory, 0o755)?;
    }
    Ok(())
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| format!("set mode of {}: {error}", path.display()))
}

fn make_device(device: &Device) -> Result<(), String> {
    mknod(&device.path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(device.major, device.minor))
        .map_err(|errno| format!("make device {}: {errno}", device.path.display()))
}

/// Returns only where the program could not be run.
fn exec(process: &Process) -> Refusal {
    // The session is the container's own, so that a terminal given to it can become its controlling terminal.
    if let Err(errno) = unistd::setsid() {
        return Refusal { code: NOT_EXECUTABLE, reason: format!("start a session: {errno}") };
    }
    if process.terminal
        && let Err(errno) = rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())
    {
        return Refusal { code: NOT_EXECUTABLE, reason: format!("take the terminal: {errno}") };
    }
    match command(process) {
        // std's exec also empties the signal mask and restores SIGPIPE, which this program had ignored.
        Ok(mut command) => Refusal::from(command.exec()),
        Err(refusal) => refusal,
    }
}

/// The command of an image, looked up in the root, PATH and user files of the caller's mount namespace.
pub(crate) fn command(process: &Process) -> Result<Command, Refusal> {
    let (program, args) = process
        .argv
        .split_first()
        .ok_or_else(|| Refusal { code: NOT_FOUND, reason: "the image names no command".to_owned() })?;
    let mut command = Command::new(program);
    command.args(args).current_dir(&process.working_dir).env_clear();
    command.envs(process.env.iter().filter_map(|variable| variable.split_once('=')));
    let identity = identity(&process.user).map_err(|reason| Refusal { code: NOT_EXECUTABLE, reason })?;
    if let Some((uid, gid)) = identity {
        command.uid(uid).gid(gid);
    }
    Ok(command)
}

/// Uid and gid of `USER[:GROUP]`; a user without a group gets the one of its passwd entry, or 0.
fn identity(user: &str) -> Result<Option<(u32, u32)>, String> {
    if user.is_empty() {
        return Ok(None);
    }
    let (name, group) = user.split_once(':').unwrap_or((user, ""));
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entry = find_entry(&passwd, name);
    let uid = name.parse().ok().or_else(|| entry?.get(2)?.parse().ok());
    let gid = if group.is_empty() {
        Some(entry_number(find_entry(&passwd, name), 3).unwrap_or(0))
    } else {
        let groups = fs::read_to_string("/etc/group").unwrap_or_default();
        group.parse().ok().or_else(|| entry_number(find_entry(&groups, group), 2))
    };
    match (uid, gid) {
        (Some(uid), Some(gid)) => Ok(Some((uid, gid))),
        _ => Err(format!("find user `{user}`: not in the image's /etc/passwd and /etc/group")),
    }
}

/// The line of passwd(5) or group(5) whose name or number (third field) is `key`, split into fields.
fn find_entry<'a>(text: &'a str, key: &str) -> Option<Vec<&'a str>> {
    text.lines()
        .map(|line| line.split(':').collect())
        .find(|fields: &Vec<&str>| fields.first() == Some(&key) || fields.get(2) == Some(&key))
}

fn entry_number(entry: Option<Vec<&str>>, field: usize) -> Option<u32> {
    entry?.get(field)?.parse().ok()
}
