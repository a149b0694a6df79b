//! The namespaces engine as its trait promises it, on real containers: isolation, commands, exit codes, stopping, limits.

use crate::fixture::{Checked, Fixture, equal, trial};
use libtest_mimic::Trial;
use std::time::{Duration, Instant};
use suite::Error;
use suite::engine::{Container, ContainerPid, ExitCode, Input, Process, Signal};

const TIMEOUT: Duration = Duration::from_secs(20);
const PROBE: &str = "/.suite/probe";

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("engine::exit_codes_are_docker_s", exit_codes),
        trial("engine::the_image_s_command_is_pid_1_alone", pid_1),
        trial("engine::nothing_of_the_host_is_seen", isolation),
        trial("engine::commands_in_the_container", commands),
        trial("engine::a_command_past_its_deadline_is_ended", deadline),
        trial("engine::term_stop_and_kill_reach_their_process", signals),
        trial("engine::a_terminal_is_the_controlling_one", terminal),
        trial("engine::a_limit_on_tasks_holds", limit),
        trial("engine::orphans_of_commands_are_counted_by_parent", orphans),
        trial("engine::a_missing_root_is_an_error_that_names_it", missing_root),
    ]
}

fn run(fixture: &Fixture, argv: &[&str]) -> Result<(ExitCode, String), libtest_mimic::Failed> {
    let container = fixture.start(argv)?;
    let code = container.wait(TIMEOUT)?;
    let log = container.log()?;
    container.remove()?;
    Ok((code, log))
}

fn exit_codes(fixture: &Fixture) -> Checked {
    for (argv, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 3"], 3),
        (&[PROBE, "exit", "128"], 128),
        (&["/no/such"], 127),
        (&["no-such-on-path"], 127),
        (&["/etc/passwd"], 126),
    ] {
        equal(&format!("{argv:?}"), &run(fixture, argv)?.0, &ExitCode(code))?;
    }
    Ok(())
}

fn pid_1(fixture: &Fixture) -> Checked {
    let (code, log) =
        run(fixture, &["sh", "-c", "echo $$; cat /proc/1/task/1/children; cat /proc/1/cmdline; echo done"])?;
    equal("exit code", &code, &ExitCode(0))?;
    if !log.starts_with("1\n") || !log.contains("sh\0-c") {
        return Err(format!("expected the shell as PID 1, found {log:?}").into());
    }
    Ok(())
}

fn isolation(fixture: &Fixture) -> Checked {
    let script = "hostname; cat /sys/class/net/lo/flags; ls /sys/class/net | wc -l; cut -d: -f3 /proc/self/cgroup | sort -u; \
                  ls /.suite; cut -d' ' -f2 /proc/mounts | sort | uniq -d | wc -l; stat -c %a /tmp /dev/shm; echo x >/dev/null";
    let (code, log) = run(fixture, &["sh", "-c", script])?;
    equal("exit code", &code, &ExitCode(0))?;
    // 0x9: up, and a loopback (if.h); the groups are roots; no trace of the old root; nothing mounted twice.
    equal("what is seen", &log.as_str(), &"suite\n0x9\n1\n/\nprobe\n0\n1777\n1777\n")?;
    let (_, mounts) = run(fixture, &["cat", "/proc/mounts"])?;
    let scratch = fixture.scratch.path().display().to_string();
    let strange = mounts.lines().filter(|line| line.split(' ').nth(1).is_some_and(|target| target.contains(&scratch)));
    equal("mounts of the host", &strange.count(), &0)
}

fn commands(fixture: &Fixture) -> Checked {
    let container = fixture.start(&["sleep", "1000"])?;
    let output = container.exec(&["sh", "-c", "echo $DOCKER_TLS_CERTDIR; echo bad >&2; exit 9"], TIMEOUT)?;
    equal("exit code", &output.code, &ExitCode(9))?;
    equal("output", &(output.stdout.as_str(), output.stderr.as_str()), &("/certs\n", "bad\n"))?;
    equal("killed", &container.exec(&["sh", "-c", "kill -KILL $$"], TIMEOUT)?.code, &ExitCode(137))?;
    equal("missing", &container.exec(&["/no/such"], TIMEOUT)?.code, &ExitCode(127))?;
    equal("not executable", &container.exec(&["/etc/passwd"], TIMEOUT)?.code, &ExitCode(126))?;
    let status = container.status(ContainerPid::INIT)?;
    equal("command line", &status.cmdline, &vec!["sleep".to_owned(), "1000".to_owned()])?;
    equal("open files", &status.files.iter().map(|file| file.fd).collect::<Vec<_>>(), &vec![0, 1, 2])?;
    container.signal(ContainerPid::INIT, Signal::Kill)?;
    equal("code after KILL", &container.wait(TIMEOUT)?, &ExitCode(137))?;
    match container.exec(&["true"], TIMEOUT) {
        Err(Error::Image(message)) if message.contains("ended with 137") => Ok(()),
        other => Err(format!("expected that the container ended with 137, found {other:?}").into()),
    }
}

fn deadline(fixture: &Fixture) -> Checked {
    let container = fixture.start(&["sleep", "1000"])?;
    let outcome = container.exec(&["sh", "-c", "sleep 999; true"], Duration::from_millis(300));
    if !matches!(outcome, Err(Error::Deadline { .. })) {
        return Err(format!("expected a deadline, found {outcome:?}").into());
    }
    // Its child dies with it, by a signal too, and so a moment later.
    await_table(&*container, |table| table.iter().filter(|process| process.state != 'Z').count() == 1)
}

fn signals(fixture: &Fixture) -> Checked {
    let container = fixture.start(&["sh", "-c", "trap 'exit 9' TERM; sleep 999 & echo ready; wait"])?;
    await_log(&*container, "ready")?;
    // The shell says so when the child is made, which is called like the shell until it executes its program.
    await_process(&*container, |process| process.comm == "sleep")?;
    let sleeper = container.processes()?.into_iter().find(|process| process.comm == "sleep").ok_or("no child")?;
    container.signal(sleeper.pid, Signal::Stop)?;
    await_process(&*container, |process| process.pid == sleeper.pid && process.state == 'T')?;
    container.signal(sleeper.pid, Signal::Continue)?;
    await_process(&*container, |process| process.pid == sleeper.pid && process.state == 'S')?;
    container.signal(ContainerPid::INIT, Signal::Term)?;
    equal("code after TERM", &container.wait(TIMEOUT)?, &ExitCode(9))
}

fn terminal(fixture: &Fixture) -> Checked {
    let container = fixture.start_with(&["sh"], Input::Terminal, None)?;
    container.type_in(b"tty; stty size >/dev/tty && exit 4\n")?;
    equal("code", &container.wait(TIMEOUT)?, &ExitCode(4))
}

fn limit(fixture: &Fixture) -> Checked {
    let script = "i=0; while [ $i -lt 40 ]; do sleep 999 & i=$((i+1)); done; echo started all";
    let container = fixture.start_with(&["sh", "-c", script], Input::Nothing, Some(20))?;
    container.wait(TIMEOUT)?;
    if container.log()?.contains("started all") {
        return Err("expected the limit to stop the loop".into());
    }
    Ok(())
}

/// The counting rule's raw material: who is whose parent, and that a PID 1 that never reaps is seen as such.
fn orphans(fixture: &Fixture) -> Checked {
    for (init, expected) in [(&[PROBE, "no-reap", "--", "sleep", "1000"][..], 5), (&["tail", "-f", "/dev/null"], 5)] {
        let container = fixture.start(init)?;
        equal("exit code", &container.exec(&[PROBE, "orphans", "5"], TIMEOUT)?.code, &ExitCode(0))?;
        let zombies =
            |table: &[Process]| table.iter().filter(|process| process.state == 'Z' && process.ppid.0 == 1).count();
        await_table(&*container, |table| zombies(table) == expected)?;
    }
    Ok(())
}

fn missing_root(fixture: &Fixture) -> Checked {
    let mut subject = fixture.pre.clone();
    subject.rootfs = "/no/such/root".into();
    let launch = suite::engine::Launch {
        subject: &subject,
        argv: vec!["true".to_owned()],
        env: Vec::new(),
        input: Input::Nothing,
        files: Vec::new(),
        volumes: Vec::new(),
        pids_max: None,
    };
    match suite::Engine::start(&fixture.engine, &launch) {
        Err(Error::Engine(message)) if message.contains("/no/such/root") => Ok(()),
        Err(other) => Err(format!("expected an error that names the root, found {other}").into()),
        Ok(_) => Err("expected an error, found a container".into()),
    }
}

fn await_log(container: &dyn Container, word: &str) -> Checked {
    await_state(word, || Ok(container.log()?.contains(word)))
}

fn await_process(container: &dyn Container, is_it: impl Fn(&Process) -> bool) -> Checked {
    await_table(container, |table| table.iter().any(&is_it))
}

fn await_table(container: &dyn Container, is_it: impl Fn(&[Process]) -> bool) -> Checked {
    let mut last = Vec::new();
    await_state("the process table", || {
        last = container.processes()?;
        Ok(is_it(&last))
    })
    .map_err(|failed| format!("{failed:?}: last {last:?}").into())
}

fn await_state(what: &str, mut holds: impl FnMut() -> Result<bool, Error>) -> Checked {
    let start = Instant::now();
    while !holds()? {
        if start.elapsed() > TIMEOUT {
            return Err(format!("wait for {what}: not within {TIMEOUT:?}").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}
