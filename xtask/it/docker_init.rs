//! The init as docker's own: installed as docker-init, or named by `init-path`, in a real dockerd. What `docker info` says of it, and what
//! containers find that `docker run --init` starts.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use oci::{Digest, Interrupt, Platform};
use suite::{Namespaces, Subject};

use crate::host::{Host, stage};
use crate::support::{ensure, folder, lacks, line_of_init_readme, repository, run, trial_if};
use crate::unstable;

/// How many orphans a container's PID 1 is left with.
const ORPHANS: usize = 20;
/// Where the init appears beside the daemon.
const INIT: &str = "/usr/local/sbin/dind-init";
/// The one program of the inner image.
const BUSYBOX: &str = "/usr/bin/busybox";
const RUN: &[&str] = &["docker", "run", "--rm", "--network", "none"];

pub(crate) fn trials() -> Vec<Trial> {
    let missing = lacks(&["mmdebstrap"]);
    vec![
        trial_if("docker_init::dockerd_20_10_takes_it_for_its_own", missing.clone(), bookworm),
        unstable::trial_if("docker_init::dockerd_28_takes_it_for_its_own", missing, newest),
    ]
}

fn bookworm() -> Result<(), Failed> {
    both_ways(&stage()?, 20)
}

fn newest(subject: &Subject) -> Result<(), Failed> {
    both_ways(subject, 28)
}

/// `oldest` is the least major version that the daemon may have.
fn both_ways(subject: &Subject, oldest: u32) -> Result<(), Failed> {
    let engine = crate::support::engine()?;
    in_its_place(subject, &engine, oldest)?;
    by_configuration(subject, &engine)
}

/// Put into docker-init's place behind the daemon's back, which asks for the version as often as it is asked itself.
fn in_its_place(subject: &Subject, engine: &Namespaces, oldest: u32) -> Result<(), Failed> {
    let daemon = Daemon::start(subject, engine, &[], Vec::new())?;
    let version = daemon.host.exec(&["docker", "version", "--format", "{{.Server.Version}}"])?;
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    ensure(major >= Some(oldest), format!("expected dockerd {oldest} or newer, found {version}"))?;
    let place = daemon.host.exec(&["sh", "-c", "command -v docker-init"])?;
    let place = place.trim();
    // The control: a program that does not answer as tini does. Where that goes unnoticed, what follows shows nothing.
    let odd = format!("rm {place} && printf '#!/bin/sh\\necho odd\\n' >{place} && chmod 755 {place}");
    daemon.host.exec(&["sh", "-c", &odd])?;
    let odd = daemon.info()?;
    ensure(odd.version == "N/A" && odd.complaints > 0, format!("a program that is no init goes unnoticed: {odd:?}"))?;

    daemon.host.exec(&["cp", INIT, place])?;
    daemon.takes("docker-init", odd.complaints)?;
    daemon.reaps()?;
    daemon.passes_exit_codes()?;
    daemon.host.remove()
}

/// Named by `init-path` in the daemon's configuration, while docker-init is the packaged one.
fn by_configuration(subject: &Subject, engine: &Namespaces) -> Result<(), Failed> {
    let folder = folder()?;
    let configuration = folder.path().join("daemon.json");
    fs::write(&configuration, line_of_init_readme("{ \"init-path\"")?)?;
    let files = vec![(configuration, "/mnt/daemon.json".into())];
    let daemon = Daemon::start(subject, engine, &["--config-file=/mnt/daemon.json"], files)?;
    daemon.takes(INIT, 0)?;
    daemon.is_pid_1()?;
    daemon.host.remove()
}

/// A dockerd with an inner image of busybox alone, and our init beside it.
struct Daemon<'a> {
    host: Host<'a>,
    init: PathBuf,
}

/// What `docker info` says of the init, and how often the daemon has complained of one.
#[derive(Debug, PartialEq)]
struct Info {
    binary: String,
    version: String,
    complaints: usize,
}

impl<'a> Daemon<'a> {
    fn start(
        subject: &Subject,
        engine: &'a Namespaces,
        flags: &[&str],
        mut files: Vec<(PathBuf, PathBuf)>,
    ) -> Result<Self, Failed> {
        let platform = Platform::host();
        let built = xtask::stages::init::build(repository(), &platform, &Interrupt::default(), &mut |_| ());
        let init = built.map_err(|error| format!("{error:#}"))?.path;
        files.push((init.clone(), INIT.into()));
        let host = Host::dockerd_in(subject, engine, flags, files)?;
        let image = format!("tar --create --directory / {} | docker import - inner", BUSYBOX.trim_start_matches('/'));
        host.exec(&["sh", "-c", &image])?;
        Ok(Self { host, init })
    }

    fn info(&self) -> Result<Info, Failed> {
        // What it warns of goes to stderr.
        let said = self.host.exec(&["sh", "-c", "docker info 2>&1"])?;
        let value = |key: &str| {
            let line = said.lines().find_map(|line| line.trim().strip_prefix(key));
            line.map(|value| value.trim().to_owned()).ok_or(format!("no `{key}` in\n{said}"))
        };
        let log = self.host.log()?;
        let complains = |line: &&str| {
            let line = line.to_lowercase();
            line.contains("init") && (line.contains("warning") || line.contains("level=error"))
        };
        let complaints = said.lines().chain(log.lines()).filter(complains).count();
        Ok(Info { binary: value("Init Binary:")?, version: value("init version:")?, complaints })
    }

    /// Expects our init's version as the daemon's, and no complaint more than `before`.
    fn takes(&self, binary: &str, before: usize) -> Result<(), Failed> {
        let version = run(Command::new(&self.init).arg("--version"))?;
        let commit = version.trim().rsplit("git.").next().ok_or("no commit")?;
        let expected = Info { binary: binary.to_owned(), version: commit.to_owned(), complaints: before };
        let found = self.info()?;
        ensure(found == expected, format!("expected {expected:?}, found {found:?}"))
    }

    /// `docker run` of a script; `options` come before the image.
    fn script(&self, options: &[&str], script: &str) -> Result<String, Failed> {
        self.host.exec(&[RUN, options, &["inner", BUSYBOX, "sh", "-c", script]].concat())
    }

    /// Expects these very bytes as PID 1 of a container.
    fn is_pid_1(&self) -> Result<(), Failed> {
        let script = format!("{BUSYBOX} tr '\\0' ' ' </proc/1/cmdline; {BUSYBOX} sha256sum /sbin/docker-init");
        let said = self.script(&["--init"], &script)?;
        let digest = Digest::of(&fs::read(&self.init)?).hex();
        ensure(said.starts_with("/sbin/docker-init -- /usr/bin/busybox sh -c "), format!("PID 1 is {said}"))?;
        ensure(said.contains(&digest), format!("expected {digest}, found {said}"))
    }

    /// The control is a container without `--init`, in which nothing reaps.
    fn reaps(&self) -> Result<(), Failed> {
        for (name, options, expected) in [("with", &["--detach", "--init"][..], 0), ("without", &["--detach"], ORPHANS)]
        {
            let start = [RUN, options, &["--name", name, "inner", BUSYBOX, "sleep", "300"]].concat();
            self.host.exec(&start)?;
            let left = self.host.exec(&["docker", "exec", name, BUSYBOX, "sh", "-c", &orphans(expected)])?;
            ensure(
                left.trim() == expected.to_string(),
                format!("{name} --init: expected {expected} zombies, found {left}"),
            )?;
            let top = self.host.exec(&["docker", "top", name, "-o", "pid,args"])?;
            let above = top.contains("/sbin/docker-init -- /usr/bin/busybox sleep 300");
            ensure(above == (name == "with"), format!("{name} --init: docker top says\n{top}"))?;
            self.host.exec(&["docker", "kill", name])?;
        }
        Ok(())
    }

    fn passes_exit_codes(&self) -> Result<(), Failed> {
        self.is_pid_1()?;
        for (command, expected) in [
            (&[BUSYBOX, "sh", "-c", "exit 0"][..], 0),
            (&[BUSYBOX, "sh", "-c", "exit 7"], 7),
            (&[BUSYBOX, "sh", "-c", "kill -TERM $$"], 143),
            (&["/no/such"], 127),
            (&["/etc/hosts"], 126),
        ] {
            let said = self.host.code(&[RUN, &["--init", "inner"], command].concat())?;
            ensure(said == expected, format!("{command:?}: expected exit {expected}, found {said}"))?;
        }
        // TERM reaches the command, which ends by it: docker need not wait for its ten seconds, and kill.
        let detached =
            ["docker", "run", "--detach", "--network", "none", "--init", "--name", "stopped", "inner", BUSYBOX];
        self.host.exec(&[&detached[..], &["sleep", "300"]].concat())?;
        self.host.exec(&["docker", "stop", "stopped"])?;
        let code = self.host.exec(&["docker", "wait", "stopped"])?;
        ensure(code.trim() == "143", format!("docker stop: expected exit 143, found {code}"))
    }
}

/// A script that leaves [`ORPHANS`] to PID 1 and prints how many zombies stay. Each `sh` ends before its child; the pipe closes once the
/// last child has ended. The expected number has five seconds to come about.
fn orphans(expected: usize) -> String {
    format!(
        "for orphan in $({BUSYBOX} seq {ORPHANS}); do {BUSYBOX} sh -c '{BUSYBOX} sleep 0.1 & exit 0'; done | {BUSYBOX} cat
         zombies() {{ {BUSYBOX} grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | {BUSYBOX} wc -l; }}
         tries=100
         while [ $(zombies) -ne {expected} ] && [ $tries -gt 0 ]; do tries=$((tries - 1)); {BUSYBOX} usleep 50000; done
         zombies"
    )
}
