//! The embedded engine: containers out of nothing but the kernel's namespaces and control groups, set up by the probe.
//! It needs root and no daemon. Everything that a container mounts lives in its own mount namespace; what does not (its
//! groups, its directory) carries the owner's name. It must never change the host's mounts or anybody else's groups.

mod cgroup;
mod container;
mod home;
mod life;
mod sweep;
mod terminal;

use crate::engine::{Container, Engine, Facts, Launch};
use crate::owner::Owner;
use crate::{Error, Interrupt};
use cgroup::Hierarchy;
use container::Contained;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The engine; see the module's head.
#[derive(Debug)]
pub struct Namespaces {
    probe: PathBuf,
    scratch: PathBuf,
    owner: Owner,
    hierarchies: Vec<Hierarchy>,
    interrupt: Interrupt,
    leftovers: Mutex<Vec<String>>,
    swept: Vec<PathBuf>,
}

impl Namespaces {
    /// `probe` is the static probe for this machine, `scratch` an existing directory for logs, best the same in every
    /// run: what a run that was killed has left there, and in the control groups, is removed now.
    ///
    /// # Errors
    /// Without root; where control groups cannot be read; where leftovers cannot be removed.
    pub fn new(probe: &Path, scratch: &Path, interrupt: Interrupt) -> Result<Namespaces, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Engine(
                "start engine namespaces: expected root, found another user\nhint: run as root".to_owned(),
            ));
        }
        let absolute = |path: &Path| path.canonicalize().map_err(Error::io(format!("find {}", path.display())));
        let (probe, scratch) = (absolute(probe)?, absolute(scratch)?);
        let hierarchies = cgroup::hierarchies()?;
        let swept = sweep::sweep(&hierarchies, &scratch)?;
        let owner = Owner::current()?;
        Ok(Namespaces { probe, scratch, owner, hierarchies, interrupt, leftovers: Mutex::default(), swept })
    }

    /// What earlier, killed runs had left and [`Namespaces::new`] has removed.
    #[must_use]
    pub fn swept(&self) -> &[PathBuf] {
        &self.swept
    }

    fn record_leftover(&self, what: String) {
        // A poisoned lock still holds a good list: pushing cannot leave it half done.
        self.leftovers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(what);
    }
}

impl Engine for Namespaces {
    fn facts(&self) -> Facts {
        let unified = self.hierarchies.iter().filter(|hierarchy| hierarchy.is_version_2()).count();
        // A hybrid layout counts as version 1: its controllers are there, and daemons take it so.
        let cgroup = if unified == self.hierarchies.len() { "v2" } else { "v1" };
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Facts { engine: "namespaces".to_owned(), kernel, cgroup: cgroup.to_owned() }
    }

    fn start<'a>(&'a self, launch: &Launch<'_>) -> Result<Box<dyn Container + 'a>, Error> {
        Ok(Box::new(Contained::start(self, launch)?))
    }

    fn leftovers(&self) -> Vec<String> {
        self.leftovers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}
