//! A container of the stand-in for trials that need a real dockerd or containerd. Never judges an image.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use oci::Layout;
use suite::engine::{Input, Launch};
use suite::{Container, Engine, Namespaces, RunConfig, Subject};
use xtask::bench::{configuration, read_only};

use crate::support::{ensure, repository, standin};

const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A container of the stand-in, in which the daemons of Debian run beside each other and disturb nothing on this machine.
pub(crate) struct Host<'a> {
    container: Box<dyn Container + 'a>,
}

/// The stand-in, unpacked.
pub(crate) fn stage() -> Result<Subject, Failed> {
    let standin = standin()?;
    let layout = Layout::open(&standin.layout)?;
    let image = xtask::stages::base::Image::read(&layout, &standin.post)?;
    let cache = repository().join("target/cache");
    Ok(Subject {
        name: "stand-in".to_owned(),
        digest: image.manifest.digest(),
        rootfs: xtask::stages::rootfs::unpacked(&image, &cache, &oci::Interrupt::default())?,
        config: RunConfig { env: image.config.env().iter().map(ToString::to_string).collect(), ..RunConfig::default() },
        shadow: Vec::new(),
    })
}

impl<'a> Host<'a> {
    /// Starts it with `argv` as PID 1; `files` of this machine appear in it.
    pub(crate) fn start(engine: &'a Namespaces, argv: &[&str], files: Vec<(PathBuf, PathBuf)>) -> Result<Self, Failed> {
        Self::start_in(&stage()?, engine, argv, files)
    }

    fn start_in(
        subject: &Subject,
        engine: &'a Namespaces,
        argv: &[&str],
        files: Vec<(PathBuf, PathBuf)>,
    ) -> Result<Self, Failed> {
        let launch = Launch {
            subject,
            argv: argv.iter().map(ToString::to_string).collect(),
            env: subject.config.env.clone(),
            input: Input::Nothing,
            files,
            volumes: vec!["/var/lib/docker".into(), "/var/lib/containerd".into()],
            pids_max: None,
        };
        Ok(Self { container: engine.start(&launch)? })
    }

    /// Starts it with a dockerd without networks as PID 1, and waits until that answers; `files` of this machine appear in it.
    pub(crate) fn dockerd(engine: &'a Namespaces, files: Vec<(PathBuf, PathBuf)>) -> Result<Self, Failed> {
        Self::dockerd_in(&stage()?, engine, &[], files)
    }

    /// The same in another root file system, `flags` added to the daemon's.
    pub(crate) fn dockerd_in(
        subject: &Subject,
        engine: &'a Namespaces,
        flags: &[&str],
        files: Vec<(PathBuf, PathBuf)>,
    ) -> Result<Self, Failed> {
        let argv = [
            "dockerd",
            "--host=unix:///var/run/docker.sock",
            "--iptables=false",
            "--bridge=none",
            "--storage-driver=overlay2",
        ];
        let host = Self::start_in(subject, engine, &[&argv, flags].concat(), files)?;
        host.wait_until(&["docker", "version"])?;
        Ok(host)
    }

    /// Starts a dockerd in it that publishes to nobody, and beside it, on port 5000, a registry of what lies in `storage`. `folder` is the
    /// trial's, for a configuration.
    pub(crate) fn with_registry(engine: &'a Namespaces, folder: &Path, storage: &Path) -> Result<Self, Failed> {
        let config = folder.join("inner.yml");
        fs::write(&config, read_only(&configuration("127.0.0.1:5000", Path::new("/mnt/registry"))))?;
        let program = xtask::tools::require("docker-registry").map_err(|error| format!("{error:#}"))?;
        let files = vec![
            (program, "/mnt/docker-registry".into()),
            (config, "/mnt/registry.yml".into()),
            (storage.to_owned(), "/mnt/registry".into()),
        ];
        let host = Self::dockerd(engine, files)?;
        host.exec(&["sh", "-c", "/mnt/docker-registry serve /mnt/registry.yml >/tmp/registry.log 2>&1 &"])?;
        host.wait_until(&["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:5000/v2/"])?;
        Ok(host)
    }

    /// Runs a command in it and returns what it printed. Error: it failed.
    pub(crate) fn exec(&self, argv: &[&str]) -> Result<String, Failed> {
        let output = self.container.exec(argv, COMMAND_TIMEOUT)?;
        let said = || format!("{argv:?}: exit {}\n{}{}", output.code, output.stdout, output.stderr);
        ensure(output.code.0 == 0, said())?;
        Ok(output.stdout)
    }

    /// The exit code of a command, whatever it is.
    pub(crate) fn code(&self, argv: &[&str]) -> Result<u8, Failed> {
        Ok(self.container.exec(argv, COMMAND_TIMEOUT)?.code.0)
    }

    /// What PID 1 has written.
    pub(crate) fn log(&self) -> Result<String, Failed> {
        Ok(self.container.log()?)
    }

    /// Waits until a command succeeds.
    pub(crate) fn wait_until(&self, argv: &[&str]) -> Result<(), Failed> {
        let deadline = Instant::now() + READY_TIMEOUT;
        while self.container.exec(argv, COMMAND_TIMEOUT)?.code.0 != 0 {
            let log = || self.container.log().unwrap_or_default();
            ensure(Instant::now() < deadline, format!("{argv:?} did not succeed in {READY_TIMEOUT:?}\n{}", log()))?;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Ends it, and fails if anything of it stays.
    pub(crate) fn remove(self) -> Result<(), Failed> {
        Ok(self.container.remove()?)
    }
}
