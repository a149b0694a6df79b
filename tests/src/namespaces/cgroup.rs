//! Control groups of both versions (cgroups(7)): where this process may make groups, one group for each container in
//! every hierarchy, and their end, those included that the daemon inside has made. It must never touch a group that it
//! did not make.

use crate::spec::GroupMount;
use crate::wait::Wait;
use crate::{Error, Interrupt};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the kernel may take to empty a group whose processes have been killed.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(15);

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hierarchy {
    pub mountpoint: PathBuf,
    /// The directory in which groups are made: in version 1 this process's own, so that its limits hold for them too;
    /// in version 2 the root, since only a group without processes may hand controllers down.
    parent: PathBuf,
    version: Version,
}

#[derive(Clone, Debug, PartialEq)]
enum Version {
    /// The mount options that name it, as `cpu,cpuacct` or `name=systemd`.
    V1(String),
    V2,
}

/// The hierarchies of this machine.
pub(crate) fn hierarchies() -> Result<Vec<Hierarchy>, Error> {
    let read = |path: &str| fs::read_to_string(path).map_err(Error::io(format!("read {path}")));
    let found = parse(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
    if found.is_empty() {
        return Err(Error::Engine("find control groups: no cgroup file system is mounted".to_owned()));
    }
    Ok(found)
}

/// From the texts of proc_pid_mountinfo(5) and of /proc/self/cgroup (cgroups(7)).
fn parse(mountinfo: &str, own: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let (place, kind): (Vec<&str>, Vec<&str>) = (place.split(' ').collect(), kind.split(' ').collect());
        let (&[_, _, _, root, mountpoint, ..], &[fstype, _, options]) = (place.as_slice(), kind.as_slice()) else {
            continue;
        };
        let mountpoint = PathBuf::from(mountpoint);
        let version = match fstype {
            "cgroup" => Version::V1(version_1_name(options)),
            "cgroup2" => Version::V2,
            _ => continue,
        };
        let parent = match &version {
            Version::V1(name) => mountpoint.join(own_group(own, name).strip_prefix(root).unwrap_or(Path::new(""))),
            Version::V2 => mountpoint.clone(),
        };
        // The same hierarchy may be mounted twice; once is enough.
        if !found.iter().any(|other| other.version == version) {
            found.push(Hierarchy { mountpoint, parent, version });
        }
    }
    found
}

/// Options that are no controller and no name are dropped; what is left selects the hierarchy in mount(2).
fn version_1_name(options: &str) -> String {
    let other = ["rw", "ro", "xattr", "noprefix", "clone_children", "favordynmods"];
    let kept: Vec<&str> =
        options.split(',').filter(|word| !other.contains(word) && !word.starts_with("release_agent=")).collect();
    kept.join(",")
}

/// The path of this process's group in the hierarchy, relative to the hierarchy's root.
fn own_group<'a>(own: &'a str, name: &str) -> &'a Path {
    let line = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        (controllers == name).then_some(path)
    });
    Path::new(line.unwrap_or("/"))
}

impl Hierarchy {
    /// How the hierarchy is mounted in a container; in a cgroup namespace its root is the container's own group.
    pub(crate) fn as_mount(&self) -> GroupMount {
        let directory = |name: &str| Path::new("/sys/fs/cgroup").join(name);
        match &self.version {
            Version::V2 => GroupMount {
                target: self.mountpoint.clone(),
                fstype: "cgroup2",
                data: String::new(),
                aliases: Vec::new(),
            },
            Version::V1(name) => {
                let data = if name.starts_with("name=") { format!("none,{name}") } else { name.clone() };
                let aliases =
                    if name.contains(',') { name.split(',').map(str::to_owned).collect() } else { Vec::new() };
                let target = directory(name.strip_prefix("name=").unwrap_or(name));
                GroupMount { target, fstype: "cgroup", data, aliases }
            }
        }
    }

    pub(crate) fn is_version_2(&self) -> bool {
        self.version == Version::V2
    }

    fn has(&self, controller: &str) -> bool {
        match &self.version {
            Version::V1(name) => name.split(',').any(|word| word == controller),
            Version::V2 => controllers_of(&self.parent, "cgroup.controllers").iter().any(|word| word == controller),
        }
    }
}

fn controllers_of(group: &Path, file: &str) -> Vec<String> {
    fs::read_to_string(group.join(file)).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// One container's groups. Dropping it leaves them; [`Groups::remove`] does not.
#[derive(Debug)]
pub(crate) struct Groups {
    directories: Vec<PathBuf>,
    pids: Option<PathBuf>,
}

impl Groups {
    /// Makes an empty group of this name in every hierarchy.
    pub(crate) fn create(hierarchies: &[Hierarchy], name: &str) -> Result<Groups, Error> {
        let unified = hierarchies.iter().all(Hierarchy::is_version_2);
        let mut groups = Groups { directories: Vec::new(), pids: None };
        for hierarchy in hierarchies {
            let made = groups.create_one(hierarchy, name, unified);
            if let Err(error) = made {
                // The first failure is what the caller needs to hear; what cannot be removed is swept by the next run.
                let _ = groups.remove();
                return Err(error);
            }
        }
        Ok(groups)
    }

    fn create_one(&mut self, hierarchy: &Hierarchy, name: &str, unified: bool) -> Result<(), Error> {
        if unified {
            hand_down(&hierarchy.parent)?;
        }
        let directory = hierarchy.parent.join(name);
        fs::create_dir(&directory).map_err(Error::io(format!("make group {}", directory.display())))?;
        self.directories.push(directory.clone());
        if hierarchy.has("cpuset") && !unified {
            // A new group of version 1 has no processors and no memory, and so takes no process (cpuset(7)).
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let path = directory.join(file);
                let inherited = fs::read(hierarchy.parent.join(file)).map_err(Error::io(format!("read {file}")))?;
                fs::write(&path, inherited).map_err(Error::io(format!("write {}", path.display())))?;
            }
        }
        if hierarchy.has("pids") {
            self.pids = Some(directory);
        }
        Ok(())
    }

    /// The files through which a process joins.
    pub(crate) fn entrances(&self) -> Vec<PathBuf> {
        self.directories.iter().map(|directory| directory.join("cgroup.procs")).collect()
    }

    pub(crate) fn limit_tasks(&self, max: u32) -> Result<(), Error> {
        let path = self.pids_file("pids.max")?;
        fs::write(&path, max.to_string()).map_err(Error::io(format!("write {}", path.display())))
    }

    pub(crate) fn tasks_charged(&self) -> Result<u64, Error> {
        let path = self.pids_file("pids.current")?;
        let text = fs::read_to_string(&path).map_err(Error::io(format!("read {}", path.display())))?;
        text.trim()
            .parse()
            .map_err(|_| Error::Engine(format!("read {}: expected a number, found `{text}`", path.display())))
    }

    fn pids_file(&self, name: &str) -> Result<PathBuf, Error> {
        let directory =
            self.pids.as_ref().ok_or_else(|| Error::Engine("count tasks: no pids controller here".to_owned()))?;
        Ok(directory.join(name))
    }

    /// Kills what is left in the groups and removes them, the daemon's own below them included.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        self.directories.iter().try_for_each(|directory| empty_and_remove(directory))
    }
}

/// Lets the children of a version 2 group have every controller that it has itself.
fn hand_down(parent: &Path) -> Result<(), Error> {
    let given = controllers_of(parent, "cgroup.subtree_control");
    for controller in controllers_of(parent, "cgroup.controllers") {
        if !given.contains(&controller) {
            let path = parent.join("cgroup.subtree_control");
            fs::write(&path, format!("+{controller}"))
                .map_err(Error::io(format!("hand {controller} down in {}", path.display())))?;
        }
    }
    Ok(())
}

/// Kills the group's processes and removes it with all groups below it; waits until they are gone. A group that is gone
/// already is no error.
pub(crate) fn empty_and_remove(group: &Path) -> Result<(), Error> {
    // Clean-up has its own deadline and does not hear the interrupt: it is what an interrupt leads to.
    Interrupt::default().until(&format!("the end of {}", group.display()), EMPTY_TIMEOUT, || {
        kill_tree(group);
        Ok(remove_tree(group).then_some(()))
    })
}

fn kill_tree(group: &Path) {
    for child in children(group) {
        kill_tree(&child);
    }
    let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in procs.lines().filter_map(|line| rustix::process::Pid::from_raw(line.parse().ok()?)) {
        // ESRCH: it has ended by itself; whether all are gone is seen when the group is removed.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

fn remove_tree(group: &Path) -> bool {
    let below = children(group).iter().all(|child| remove_tree(child));
    // EBUSY: a process has not ended yet.
    below && (fs::remove_dir(group).is_ok() || !group.exists())
}

fn children(group: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(group).map(|entries| entries.filter_map(Result::ok).collect::<Vec<_>>()).unwrap_or_default();
    entries
        .into_iter()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_layout() {
        let mountinfo = "\
30 24 0:26 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 /outer /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct";
        let own = "4:cpu,cpuacct:/outer/inner\n1:name=systemd:/a/b\n0::/a/b";
        let found = parse(mountinfo, own);
        let parents: Vec<String> = found.iter().map(|hierarchy| hierarchy.parent.display().to_string()).collect();
        assert_eq!(
            parents,
            ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd/a/b", "/sys/fs/cgroup/cpu,cpuacct/inner"]
                .map(str::to_owned)
        );
        let joint = found[2].as_mount();
        assert_eq!((joint.data.as_str(), joint.aliases.len()), ("cpu,cpuacct", 2));
        assert_eq!(found[1].as_mount().data, "none,name=systemd");
        assert_eq!(found[0].as_mount().fstype, "cgroup2");
    }
}
