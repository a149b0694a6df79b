//! Containers that are killed and started again: what the engine keeps, which pid files the init removes and which it leaves, and
//! how often a daemon comes up again.

use crate::fixture::{Checked, Fixture, Images, equal, skip, trial};
use libtest_mimic::{Completion, Failed, Trial};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use suite::Error;
use suite::engine::{Container, ContainerPid, ExitCode, Input, Launch, Signal};

const TIMEOUT: Duration = Duration::from_secs(20);
/// From the start of a container to its daemon's first answer.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const PROBE: &str = "/.suite/probe";
const INIT: &str = "/usr/local/sbin/dind-init";
/// What the kernel keeps of a program's name (proc_pid_comm(5)).
const COMM_LENGTH: usize = 15;
const ROUNDS: u32 = 25;
const ENTRYPOINT: &[&str] = &["dockerd-entrypoint.sh", "--iptables=false", "--bridge=none", "--tls=false"];
const DOCKERD: &[&str] = &["dockerd", "--iptables=false", "--bridge=none"];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("engine::a_restart_keeps_the_file_system_alone", kept),
        init_trial("init::pid_files_go_unless_their_daemon_lives", pid_files),
        init_trial("init::pid_files_on_a_mount_are_left", mounted),
        init_trial("init::pid_files_are_left_where_it_is_not_pid_1", not_pid_1),
        init_trial("init::a_run_without_pid_files_and_a_read_only_one_are_silent", silent),
        // Six minutes, for the rivals wait in vain. `cargo test -p suite -- --ignored restarts`
        init_trial("init::25_rapid_restarts_of_dockerd_beside_other_inits", rapid).with_ignored_flag(true),
    ]
}

fn init_trial(name: &str, check: fn(&Fixture, &Images) -> Checked) -> Trial {
    Trial::ignorable_test(name, move || {
        let _others = crate::fixture::CONTAINERS.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        match Images::find().and_then(|images| Ok((Fixture::find()?, images))) {
            Err(reason) => skip(reason),
            Ok((fixture, images)) => check(&fixture, &images).map(|()| Completion::Completed),
        }
    })
}

/// Starts the stand-in with the init and its guards beside it.
fn start<'a>(fixture: &'a Fixture, images: &Images, argv: &[&str]) -> Result<Box<dyn Container + 'a>, Failed> {
    start_with(fixture, images, argv, &[])
}

fn start_with<'a>(
    fixture: &'a Fixture,
    images: &Images,
    argv: &[&str],
    volumes: &[&str],
) -> Result<Box<dyn Container + 'a>, Failed> {
    let beside = [(&images.init, INIT), (&images.tini, "/usr/local/bin/tini")];
    let launch = Launch {
        subject: &fixture.pre,
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: [fixture.pre.config.env.clone(), vec!["DOCKER_TLS_CERTDIR=".to_owned()]].concat(),
        input: Input::Nothing,
        files: beside.map(|(file, target)| (file.clone(), target.into())).into(),
        volumes: volumes.iter().map(PathBuf::from).collect(),
        pids_max: None,
    };
    Ok(suite::Engine::start(&fixture.engine, &launch)?)
}

/// Each life says what it finds of the ones before, then leaves something in every place.
const LIFE: &str = "groups=/sys/fs/cgroup; test -d $groups/pids && groups=$groups/pids; \
    cat /run/life /var/lib/docker/life 2>/dev/null; ls /dev/shm; ls $groups | grep below; grep suite-test /proc/mounts; \
    echo x >> /run/life; echo y >> /var/lib/docker/life; touch /dev/shm/shared; mkdir $groups/below; \
    mkdir -p /mnt/a; mount -t tmpfs suite-test /mnt/a; sleep 999 & echo ready; wait";

fn kept(fixture: &Fixture) -> Checked {
    let mut container = fixture.start(&["sh", "-c", LIFE])?;
    for lives in 0..3 {
        await_log(&*container, "ready")?;
        let expected = format!("{}{}ready\n", "x\n".repeat(lives), "y\n".repeat(lives));
        equal(&format!("what is found after {lives} lives"), &container.log()?, &expected)?;
        equal("processes", &container.processes()?.len(), &2)?;
        equal("tasks", &container.tasks_charged()?, &2)?;
        container.kill_and_restart()?;
    }
    // One that has ended by itself is started again as well.
    container.signal(ContainerPid::INIT, Signal::Kill)?;
    equal("exit code", &container.wait(TIMEOUT)?, &ExitCode(137))?;
    container.kill_and_restart()?;
    await_log(&*container, "ready")?;
    container.remove()?;
    Ok(())
}

/// Which pid files are left by the init, as which `script`, PID 1, ends.
fn left_by(fixture: &Fixture, images: &Images, script: &str) -> Result<String, Failed> {
    let list = "find /run/ $(test -h /var/run || echo /var/run/) -name '*.pid' | sort | tr '\\n' ' '";
    let script = format!("mkdir -p /run/docker/containerd /run/containerd; {script}; exec {INIT} -- sh -c \"{list}\"");
    let container = start(fixture, images, &["sh", "-c", &script])?;
    let code = container.wait(TIMEOUT)?;
    let log = container.log()?;
    container.remove()?;
    equal(&format!("exit code, with {log:?}"), &code, &ExitCode(0))?;
    Ok(log)
}

/// A zombie called dockerd: its parent became a program that never waits.
const DEAD: &str = "cp /.suite/probe /tmp/dockerd; sh -c '/tmp/dockerd sleep 999 & echo $! > /run/docker.pid; exec sleep 999' & \
    until grep -qs . /run/docker.pid && grep -qsx sleep /proc/$!/comm; do :; done; read pid < /run/docker.pid; \
    kill -9 $pid; until grep -qs 'State:.Z' /proc/$pid/status; do :; done";

fn pid_files(fixture: &Fixture, images: &Images) -> Checked {
    // A process called NAME, which the init finds as its child when it starts; then its number is in each file.
    let both = "tee /run/docker.pid > /run/docker/containerd/containerd.pid";
    let beside = |name: &str| {
        let process = format!("cp {PROBE} /tmp/{name}; /tmp/{name} sleep 999 &");
        let comm: String = name.chars().take(COMM_LENGTH).collect();
        format!("{process} until grep -qsx {comm} /proc/$!/comm; do :; done; printf $! | {both}")
    };
    let each = |content: &str| format!("printf '{content}' | {both}");
    let (docker, managed) = ("/run/docker.pid ", "/run/docker/containerd/containerd.pid ");
    let real = "rm /var/run; mkdir -p /var/run/docker/containerd; echo 4000000 | tee /var/run/docker.pid > /var/run/docker/containerd/containerd.pid";
    let others = "echo 4000000 | tee /run/sshd.pid > /run/containerd/containerd.pid";
    let cases = [
        ("nobody has the number", each("4000000"), String::new()),
        ("PID 1 has it", each("1"), String::new()),
        ("another process has it", beside("other"), String::new()),
        ("dockerd has it", beside("dockerd"), docker.to_owned()),
        ("containerd has it", beside("containerd"), managed.to_owned()),
        ("a shim of containerd has it", beside("containerd-shim-runc-v2"), String::new()),
        ("a dockerd has it that is dead but not reaped", DEAD.to_owned(), String::new()),
        ("empty", each(""), String::new()),
        ("a word, which keeps dockerd 20.10 from starting", each("word"), String::new()),
        ("a number and more", each("1 2"), String::new()),
        ("no pid", each("-1"), String::new()),
        ("a number that overflows", each("18446744073709551617"), String::new()),
        ("zeros, as after a power cut", each("\\0\\0\\0\\0"), String::new()),
        ("a folder", format!("mkdir {docker}; echo 4000000 > {managed}"), docker.to_owned()),
        ("below /var/run, which is no link", real.to_owned(), String::new()),
        (
            "files that no daemon looks at",
            others.to_owned(),
            "/run/containerd/containerd.pid /run/sshd.pid ".to_owned(),
        ),
    ];
    let mut wrong = Vec::new();
    for (name, script, expected) in cases {
        let found = left_by(fixture, images, &script).map_err(|failed| format!("{name}: {failed:?}"))?;
        if found != expected {
            wrong.push(format!("{name}: expected {expected:?}, found {found:?}"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ").into()) }
}

fn mounted(fixture: &Fixture, images: &Images) -> Checked {
    let (docker, managed) = ("/run/docker.pid\n", "/run/docker/containerd/containerd.pid\n");
    let write =
        "mkdir -p /run/docker/containerd; echo 4000000 | tee /run/docker.pid > /run/docker/containerd/containerd.pid";
    let script = format!("{write}; exec {INIT} -- sh -c 'find /run -name \"*.pid\" | sort'");
    for (volume, expected) in [("/run", [docker, managed].concat()), ("/run/docker", managed.to_owned())] {
        let container = start_with(fixture, images, &["sh", "-c", &script], &[volume])?;
        equal("exit code", &container.wait(TIMEOUT)?, &ExitCode(0))?;
        equal(volume, &container.log()?, &expected)?;
    }
    Ok(())
}

fn not_pid_1(fixture: &Fixture, images: &Images) -> Checked {
    let script = format!("echo 4000000 > /run/docker.pid; {INIT} -- ls /run/docker.pid; exit 3");
    let container = start(fixture, images, &["sh", "-c", &script])?;
    equal("exit code", &container.wait(TIMEOUT)?, &ExitCode(3))?;
    equal("what is left", &container.log()?.as_str(), &"/run/docker.pid\n")
}

fn silent(fixture: &Fixture, images: &Images) -> Checked {
    for script in
        ["rm -rf /run/*", "rm -rf /run; ln -s nowhere /run", "echo 4000000 > /run/docker.pid; mount -o remount,ro /"]
    {
        let script = format!("{script}; exec {INIT} -- sh -c 'exit 5'");
        let container = start(fixture, images, &["sh", "-c", &script])?;
        equal("exit code", &container.wait(TIMEOUT)?, &ExitCode(5))?;
        equal(&script, &container.log()?.as_str(), &"")?;
    }
    Ok(())
}

/// One init after the other, under the image's entrypoint and in its place.
fn rapid(fixture: &Fixture, images: &Images) -> Checked {
    let mut missed = 0;
    for (name, above, ours) in
        [("none", &[][..], false), ("tini", &["tini", "--"], false), ("dind-init", &[INIT, "--"], true)]
    {
        for command in [ENTRYPOINT, DOCKERD] {
            let began = Instant::now();
            let up = rounds(fixture, images, &[above, command].concat())?;
            println!("{name} above {}: {up} of {ROUNDS} up, {:.1} s", command[0], began.elapsed().as_secs_f64());
            missed += if ours { ROUNDS - up } else { 0 };
        }
    }
    equal("restarts under dind-init after which no daemon answered", &missed, &0)
}

fn rounds(fixture: &Fixture, images: &Images, argv: &[&str]) -> Result<u32, Failed> {
    let mut container = start(fixture, images, argv)?;
    if !comes_up(&*container)? {
        return Err(format!("{argv:?}: did not come up at first: {}", container.log()?).into());
    }
    let mut up = 0;
    for _ in 0..ROUNDS {
        container.kill_and_restart()?;
        up += u32::from(comes_up(&*container)?);
    }
    container.remove()?;
    Ok(up)
}

fn comes_up(container: &dyn Container) -> Result<bool, Failed> {
    let start = Instant::now();
    while start.elapsed() < READY_TIMEOUT {
        if container.ended()?.is_some() {
            return Ok(false);
        }
        match container.exec(&[PROBE, "ping", "/var/run/docker.sock"], TIMEOUT) {
            Ok(output) if output.code == ExitCode(0) => return Ok(true),
            Ok(_) => std::thread::sleep(Duration::from_millis(100)),
            Err(Error::Image(_)) => return Ok(false),
            Err(other) => return Err(other.into()),
        }
    }
    Ok(false)
}

fn await_log(container: &dyn Container, word: &str) -> Checked {
    let start = Instant::now();
    while !container.log()?.contains(word) {
        if start.elapsed() > TIMEOUT {
            return Err(format!("wait for {word}: not within {TIMEOUT:?}; found {:?}", container.log()?).into());
        }
        std::thread::yield_now();
    }
    Ok(())
}
