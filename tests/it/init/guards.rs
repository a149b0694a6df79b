//! Guards: called by a daemon's name, the init runs the real one, as its init where none of ours is above it.
//!
//! The daemons here are scripts and copies of sleep(1); which of them is found, who is above it, and what happens to its
//! orphans is all that counts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::Check;
use super::process::{
    Checked, HostPid, Running, Stat, as_child, as_pid1, children, descendants, ensure, equal, eventually, names, run,
    send, zombies,
};
use super::subject::{Ask, Subject};

pub(crate) const CHECKS: &[Check] = &[
    ("guard_becomes_pid_1_and_reaps", as_first, &[Ask::Guard]),
    ("guard_steps_aside_below_ours", below_ours, &[Ask::Guard]),
    ("guard_becomes_a_subreaper_below_others", below_others, &[Ask::Guard]),
    ("guard_reaps_where_the_init_above_cannot_be_seen", unseen, &[Ask::Guard]),
    ("guard_reaps_without_proc", without_proc, &[Ask::Guard]),
    ("guard_in_a_guarded_daemon_steps_aside", nested, &[Ask::Guard]),
    ("guard_finds_the_real_program", finds, &[Ask::Guard]),
    ("guard_without_path_searches_the_usual_folders", without_path, &[Ask::Guard]),
    ("guard_without_real_program_says_127", nothing_behind, &[Ask::Guard]),
    ("guard_takes_its_daemon_along", dies_together, &[Ask::Guard]),
    ("guard_keeps_the_daemons_names", names_kept, &[Ask::Guard]),
];

/// Orphans that the daemon makes.
const ORPHANS: usize = 5;

/// A daemon that makes orphans, then stays until it is told a line, whose number it exits with.
const DAEMON: &str = "#!/bin/sh
i=0; while [ $i -lt 5 ]; do (true &); i=$((i+1)); done
echo ready
read code && exit $code
";

/// A PID 1 that reaps nothing, above the daemon: the shell does not wait for the job, and sleep for nobody.
const JOB: &str = "exec 3<&0; dockerd <&3 & exec sleep 1000";

/// A folder with guards in `sbin` and a daemon behind them in `bin`.
struct Image {
    folder: tempfile::TempDir,
    subject: Subject,
}

impl Image {
    fn new(subject: &Subject) -> Checked<Self> {
        let folder = tempfile::tempdir().map_err(|error| format!("make a folder: {error}"))?;
        let image = Self { folder, subject: subject.clone() };
        fs::set_permissions(image.folder.path(), fs::Permissions::from_mode(0o755))
            .map_err(|error| error.to_string())?;
        image.copy(subject.program(), "sbin/dind-init")?;
        for guard in ["sbin/dockerd", "sbin/containerd"] {
            image.link("dind-init", guard)?;
        }
        image.daemon("bin/dockerd", DAEMON)?;
        // The system's own folders may hold real daemons.
        for tool in ["sh", "sleep", "true", "unshare", "setpriv"] {
            image.link(&format!("/usr/bin/{tool}"), &format!("tools/{tool}"))?;
        }
        Ok(image)
    }

    fn at(&self, name: &str) -> Checked<PathBuf> {
        let path = self.folder.path().join(name);
        let parent = path.parent().ok_or("a path without folder")?;
        fs::create_dir_all(parent).map_err(|error| format!("make {}: {error}", parent.display()))?;
        Ok(path)
    }

    fn copy(&self, from: &Path, to: &str) -> Checked {
        fs::copy(from, self.at(to)?).map(|_| ()).map_err(|error| format!("copy {} to {to}: {error}", from.display()))
    }

    fn link(&self, target: &str, name: &str) -> Checked {
        symlink(target, self.at(name)?).map_err(|error| format!("link {name}: {error}"))
    }

    fn daemon(&self, name: &str, script: &str) -> Checked {
        let path = self.at(name)?;
        fs::write(&path, script).map_err(|error| format!("write {name}: {error}"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())
    }

    /// PATH with these folders of the image, and one with what scripts need.
    fn path(&self, folders: &str) -> String {
        let top = self.folder.path().display().to_string();
        let named = folders.split(':').map(|folder| match folder {
            "" | "." => folder.to_owned(),
            folder => format!("{top}/{folder}"),
        });
        named.collect::<Vec<_>>().join(":") + ":" + &top + "/tools"
    }

    /// `command` with the guards first on PATH.
    fn guarded(&self, mut command: Command) -> Command {
        command.env("PATH", self.path("sbin:bin"));
        self.subject.prepare(&mut command);
        command
    }

    fn init(&self) -> PathBuf {
        self.folder.path().join("sbin/dind-init")
    }
}

fn shell(mut command: Command, script: &str) -> Command {
    command.args(["-c", script]);
    command
}

/// Waits until all orphans of the daemon are gone; `adopter` is who reaps, with one child left.
fn reaped(adopter: HostPid) -> Checked {
    eventually("the daemon alone is left", || children(adopter).len() == 1)?;
    equal("zombies", zombies(adopter), 0)
}

/// How many processes of a tree have a name.
fn count(top: HostPid, name: &str) -> usize {
    names(top).iter().filter(|found| *found == name).count()
}

fn as_first(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    for script in ["exec dockerd", "exec sbin/dockerd"] {
        let mut command = image.guarded(shell(as_pid1("/bin/sh"), script));
        command.current_dir(image.folder.path());
        let mut running = Running::start(command)?;
        running.ready()?;
        let init = running.init()?;
        reaped(init)?;
        equal("processes", names(init), vec!["dind-init".to_owned(), "dockerd".to_owned()])?;
        running.tell("7")?;
        equal("exit code", running.wait()?.code, 7)?;
    }
    // The control: the same daemon without a guard.
    let mut command = shell(as_pid1("/bin/sh"), JOB);
    command.env("PATH", image.path("bin"));
    let running = Running::start(command)?;
    running.ready()?;
    let init = running.init()?;
    eventually("every orphan is a zombie without the guard", || zombies(init) == ORPHANS)
}

fn below_ours(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    for script in ["exec dockerd", "dockerd; exit $?", "sh -c 'dockerd; exit $?'; exit $?"] {
        let mut command = image.guarded(as_pid1(image.init()));
        command.args(["--", "/bin/sh", "-c", script]);
        let mut running = Running::start(command)?;
        running.ready()?;
        let init = running.init()?;
        reaped(init)?;
        equal(&format!("inits with {script}"), count(init, "dind-init"), 1)?;
        equal(&format!("daemons with {script}"), count(init, "dockerd"), 1)?;
        running.tell("7")?;
        equal("exit code", running.wait()?.code, 7)?;
    }
    Ok(())
}

fn below_others(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    // A PID 1 that reaps nothing, and one that is ours but of another PID namespace: /proc shows that one's processes.
    let careless = image.guarded(shell(as_pid1("/bin/sh"), JOB));
    let mut foreign = image.guarded(as_pid1(image.init()));
    foreign.args(["--", "unshare", "--pid", "--fork", "/bin/sh", "-c", JOB]);
    for command in [careless, foreign] {
        let running = Running::start(command)?;
        running.ready()?;
        let top = running.init()?;
        let is_guard = |process: &HostPid| {
            Stat::of(*process).is_some_and(|stat| stat.name == "dind-init")
                && children(*process).into_iter().filter_map(Stat::of).any(|stat| stat.name == "dockerd")
        };
        let guard =
            descendants(top).into_iter().find(is_guard).ok_or_else(|| format!("find the guard: {:?}", names(top)))?;
        reaped(guard)?;
        let parent = Stat::of(guard).map_or(0, |stat| stat.parent);
        equal("zombies above", zombies(parent), 0)?;
    }
    Ok(())
}

fn unseen(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    let mut command = image.guarded(as_pid1(image.init()));
    command.args(["--", "setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups", "dockerd"]);
    let running = Running::start(command)?;
    running.ready()?;
    let top = running.init()?;
    let guard = running.main_child()?;
    reaped(guard)?;
    equal("processes", names(top).join(" ").as_str(), "dind-init dind-init dockerd")
}

/// Nobody can tell what is above: it reaps.
fn without_proc(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    let script = format!("/usr/bin/mount -t tmpfs none /proc && exec {} -- dockerd", image.init().display());
    let running = Running::start(image.guarded(shell(as_pid1("/bin/sh"), &script)))?;
    running.ready()?;
    reaped(running.main_child()?)?;
    equal("processes", names(running.init()?).join(" ").as_str(), "dind-init dind-init dockerd")
}

fn nested(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    image.daemon("bin/dockerd", "#!/bin/sh\ncontainerd; exit $?\n")?;
    image.daemon("bin/containerd", DAEMON)?;
    let running = Running::start(image.guarded(shell(as_pid1("/bin/sh"), "exec dockerd")))?;
    running.ready()?;
    let init = running.init()?;
    reaped(init)?;
    equal("processes", names(init).join(" ").as_str(), "containerd dind-init dockerd")
}

fn finds(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    image.daemon("bin/dockerd", "#!/bin/sh\nexit 40\n")?;
    image.link("../sbin/dind-init", "links/dockerd")?;
    fs::hard_link(image.init(), image.at("hard/dockerd")?).map_err(|error| format!("link: {error}"))?;
    image.copy(&image.init(), "copy/dockerd")?;
    image.copy(&image.init(), "copy2/dockerd")?;
    image.daemon("plain/dockerd", "exit 41\n")?;
    fs::set_permissions(image.at("plain/dockerd")?, fs::Permissions::from_mode(0o644))
        .map_err(|error| error.to_string())?;
    fs::create_dir_all(image.at("folder/dockerd/x")?).map_err(|error| error.to_string())?;
    image.daemon("script/dockerd", "exit \"$1\"\n")?;
    let cases = [
        ("sbin:bin", "dockerd", 40),
        ("sbin:links:hard:sbin:bin", "dockerd", 40),
        ("links:sbin:bin", "dockerd", 40),
        ("copy:copy2:sbin:bin", "dockerd", 40),
        ("sbin:plain:folder:none:bin", "dockerd", 40),
        ("bin:sbin", "sbin/dockerd", 40),
        ("none", "bin/../sbin/dockerd", 127),
        (":sbin:bin", "dockerd", 40),
        ("sbin::bin", "dockerd", 40),
        ("sbin:script", "dockerd", 42),
    ];
    for (folders, name, expected) in cases {
        for above in [&["exec"][..], &["/init", "--"]] {
            let above: Vec<_> =
                above.iter().map(|word| word.replace("/init", &image.init().display().to_string())).collect();
            let mut command = shell(as_pid1("/bin/sh"), &format!("{} {name} 42", above.join(" ")));
            command.current_dir(image.folder.path()).env("PATH", image.path(folders));
            let ended = run(command)?;
            equal(
                &format!("exit code of {name} with {folders} after {above:?} ({})", ended.stderr),
                ended.code,
                expected,
            )?;
        }
    }
    let mut command = shell(as_pid1("/bin/sh"), "exec sbin/dockerd");
    command.current_dir(image.folder.path()).env("PATH", "sbin:bin:tools");
    equal("exit code with a relative PATH", run(command)?.code, 40)
}

fn without_path(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    image.daemon("bin/dockerd", "#!/bin/sh\nexit 40\n")?;
    let top = image.folder.path().display();
    // In a mount namespace of its own: /usr/local/bin holds the daemon, as in the official image.
    let script = format!("mount --bind {top}/bin /usr/local/bin && exec env -u PATH {top}/sbin/dockerd");
    equal("exit code", run(shell(as_pid1("sh"), &script))?.code, 40)
}

fn nothing_behind(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    let mut command = shell(as_pid1("/bin/sh"), "exec containerd");
    command.env("PATH", image.path("sbin"));
    let ended = run(command)?;
    equal("exit code", ended.code, 127)?;
    equal("stderr", ended.stderr.as_str(), "init: exec containerd: not found on PATH behind its guard\n")
}

fn dies_together(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    let running = Running::start(image.guarded(as_child(image.folder.path().join("sbin/dockerd"))))?;
    running.ready()?;
    let (guard, daemon) = (running.init()?, running.main_child()?);
    equal("name of the guard", Stat::of(guard).map(|stat| stat.name), Some("dind-init".to_owned()))?;
    send(guard, Signal::KILL);
    eventually("the daemon is gone, too", || Stat::of(daemon).is_none_or(|stat| stat.state == "Z"))
}

fn names_kept(subject: &Subject) -> Checked {
    let image = Image::new(subject)?;
    image.copy(Path::new("/bin/sleep"), "bin/dockerd")?;
    let running = Running::start(image.guarded(shell(as_pid1("/bin/sh"), "exec dockerd 1000")))?;
    eventually("the daemon runs", || running.init().is_ok_and(|init| count(init, "dockerd") == 1))?;
    let mut pgrep = Command::new("nsenter");
    pgrep.args(["--target", &running.init()?.to_string(), "--pid", "--mount", "pgrep", "-x", "dockerd"]);
    let found = run(pgrep)?;
    equal("processes that pgrep finds", found.stdout.lines().count(), 1)?;
    let words = fs::read(format!("/proc/{}/cmdline", running.main_child()?)).map_err(|error| error.to_string())?;
    ensure(words == b"dockerd\x001000\x00", format!("arguments of the daemon: {:?}", String::from_utf8_lossy(&words)))
}
