//! What a container has outside of its namespaces: a directory for its log and its report, its control groups, and the
//! host's numbers of its processes. Directory and groups carry the owner's name, so that a sweep knows them. It must never know what runs in the container.

use super::Namespaces;
use super::cgroup::Groups;
use crate::Error;
use crate::engine::{ContainerPid, HostPid};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The container's directory and groups.
pub(super) struct Home {
    pub directory: PathBuf,
    pub groups: Groups,
}

impl Home {
    pub(super) fn create(engine: &Namespaces) -> Result<Home, Error> {
        let name = engine.owner.next_name();
        let groups = Groups::create(&engine.hierarchies, &name)?;
        let home = Home { directory: engine.scratch.join(name), groups };
        let made = fs::create_dir_all(home.directory.join("root"))
            .map_err(Error::io(format!("make {}", home.directory.display())));
        let made = made.and_then(|()| {
            mknodat(CWD, home.report(), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                .map_err(|errno| Error::io(format!("make {}", home.report().display()))(errno.into()))
        });
        match made {
            Ok(()) => Ok(home),
            Err(error) => Err(home.remove().err().unwrap_or(error)),
        }
    }

    /// Ends what is left in the container's groups and puts empty ones in their place.
    pub(super) fn renew_groups(&mut self, engine: &Namespaces) -> Result<(), Error> {
        self.groups.remove()?;
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.groups = Groups::create(&engine.hierarchies, &name)?;
        Ok(())
    }

    pub(super) fn report(&self) -> PathBuf {
        self.directory.join("report")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    pub(super) fn remove(&self) -> Result<(), Error> {
        let groups = self.groups.remove();
        let directory = match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io(format!("remove {}", self.directory.display()))(error))
            }
            _ => Ok(()),
        };
        groups.and(directory)
    }
}

/// The last `max` bytes of a file.
pub(super) fn read_end(path: &Path, max: u64) -> Result<String, Error> {
    let fault = || Error::io(format!("read {}", path.display()));
    let mut file = File::open(path).map_err(fault())?;
    let length = file.metadata().map_err(fault())?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max))).map_err(fault())?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes).map_err(fault())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The host's number of a process in the PID namespace of `init`. The last number of the line `NSpid` is the one in the
/// process's own namespace (proc_pid_status(5)).
pub(super) fn find_outside(init: HostPid, pid: ContainerPid) -> Result<Option<HostPid>, Error> {
    let namespace = |number: i32| fs::read_link(format!("/proc/{number}/ns/pid")).ok();
    let Some(wanted) = namespace(init.0) else { return Ok(None) };
    let entries = fs::read_dir("/proc").map_err(Error::io("list /proc"))?;
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let inside = |number: i32| -> Option<i32> {
        let status = fs::read_to_string(format!("/proc/{number}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
    };
    Ok(numbers
        .filter(|number| namespace(*number).as_ref() == Some(&wanted))
        .find(|number| inside(*number) == Some(pid.0))
        .map(HostPid))
}
