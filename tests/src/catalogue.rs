//! The scenarios, each with its controls. A row of a table each: what is started, in which legs, what must be left. Within
//! one start, cases run in this order in one container, so what ends the container stands last.

use crate::Kind::{Containerd, Dockerd, Init};
use crate::bench::Daemon;
use crate::scenario::Leg::{Bare, InitAbove, Ours, Published, Tini, Unsilenced};
use crate::scenario::{Case, Scenario, Start, Step, Want};
use crate::stage::DOCKERD_BY_NAME;
use crate::steps;

const ISSUE: &str = "docker-library/docker#318";

const DOCKERD_BY_PATH: &[&str] = &["/usr/local/bin/dockerd", "--iptables=false", "--bridge=none"];
const DOCKERD_IN_SHELL: &[&str] = &["sh", "-c", "dockerd --iptables=false --bridge=none"];
const DOCKERD_BESIDE: &[&str] = &["sh", "-c", "dockerd --iptables=false --bridge=none & exec sleep 1000"];

/// Five runs leave five zombies wherever nothing reaps, the published base included, and none elsewhere.
const FIVE: &[Want] =
    &[Want::zombies(Bare, 5, 5), Want::zombies(Published, 5, 5), Want::zombies(Tini, 5, 0), Want::zombies(Ours, 5, 0)];
/// The same where the published base is no other than the bare one.
const FIVE_OF_ONE_BASE: &[Want] = &[Want::zombies(Bare, 5, 5), Want::zombies(Tini, 5, 0), Want::zombies(Ours, 5, 0)];
/// The same where the command line leaves no place for a packaged init.
const FIVE_WITHOUT_ENTRYPOINT: &[Want] =
    &[Want::zombies(Bare, 5, 5), Want::zombies(Published, 5, 5), Want::zombies(Ours, 5, 0)];
const ORPHANS: &[Want] = &[Want::zombies(Bare, 10, 10), Want::zombies(Tini, 10, 0), Want::zombies(Ours, 10, 0)];
const FOREIGN: &[(&str, &str)] = &[("zombie of another parent", "seen")];
const NONE_BUT_FOREIGN: &[Want] = &[
    Want::zombies(Bare, 1, 0).and_facts(FOREIGN),
    Want::zombies(Tini, 1, 0).and_facts(FOREIGN),
    Want::zombies(Ours, 1, 0).and_facts(FOREIGN),
];
/// Each run of the control keeps one task for good, exactly; it needs no more runs to show that.
const GROWN: &[(&str, &str)] = &[("tasks charged to the dead", "20"), ("live processes", "as before")];
const IDLE: &[(&str, &str)] = &[("tasks charged to the dead", "0"), ("live processes", "as before")];
const LINEAR: &[Want] = &[
    Want::zombies(Bare, 20, 20).and_facts(GROWN),
    Want::zombies(Tini, 10, 0).and_facts(IDLE),
    Want::zombies(Ours, 200, 0).and_facts(IDLE),
];
const BURST: &[Want] = &[Want::zombies(Bare, 30, 30), Want::zombies(Tini, 10, 0), Want::zombies(Ours, 30, 0)];
const LIKE_BASE: &[Want] = &[Want::facts(Bare, &[]), Want::like(Tini, Bare), Want::like(Ours, Bare)];
const DOWN: &[(&str, &str)] = &[("first restart without an answer", "1")];
const UP: &[(&str, &str)] = &[("first restart without an answer", "none")];
/// One restart of the control, beside numbers that are surely taken: what daemons have left by themselves names a living process by
/// chance (tests/README.md tells how often). With an entrypoint that binds TCP, dockerd 20.10 waits a second in each of its starts.
const RESTARTED: &[Want] = &[Want::facts(Bare, DOWN), Want::facts(Ours, UP).and_runs(10)];
const RESTARTED_BY_NAME: &[Want] = &[Want::facts(Bare, DOWN), Want::facts(Ours, UP).and_runs(25)];
/// containerd alone has no pid file, so that its base comes up, too. That the look at it can fail is shown by those of dockerd.
const RESTARTED_CONTAINERD: &[Want] = &[Want::facts(Bare, UP), Want::facts(Ours, UP).and_runs(10)];
const STOPPED: &[(&str, &str)] = &[("exit code", "0"), ("shutdown logged", "yes")];
const GRACEFUL: &[Want] =
    &[Want::facts(Bare, STOPPED), Want::like(Tini, Bare).and_facts(STOPPED), Want::like(Ours, Bare).and_facts(STOPPED)];

const TERMINATED: &[(&str, &str)] = &[("exit code", "143")];
const ENDED_BY_TERM: &[Want] = &[
    Want::facts(Bare, TERMINATED),
    Want::like(Tini, Bare).and_facts(TERMINATED),
    Want::like(Ours, Bare).and_facts(TERMINATED),
];

const fn inside(name: &'static str, image: crate::Kind, start: Start, daemon: Daemon, wants: &'static [Want]) -> Case {
    Case { name, image, smoke: false, start, step: Step::Inside(daemon, steps::short_runs), wants }
}

/// All scenarios, ascending by number.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        number: 1,
        name: "dockerd-true-x5",
        area: "inner runs",
        proves: "a container run by dockerd leaves no zombie shim",
        source: ISSUE,
        cases: &[Case { smoke: true, ..inside("5 runs", Dockerd, Start::Image, Daemon::Dockerd, FIVE_OF_ONE_BASE) }],
    },
    Scenario {
        number: 2,
        name: "containerd-ctr-x5",
        area: "inner runs",
        proves: "a container run by containerd alone leaves no zombie shim",
        source: "containerd/containerd#5708",
        cases: &[Case {
            smoke: true,
            ..inside("5 ctr runs", Containerd, Start::Image, Daemon::Containerd, FIVE_OF_ONE_BASE)
        }],
    },
    Scenario {
        number: 3,
        name: "linear",
        area: "inner runs",
        proves: "nothing accumulates: after many runs the number of tasks is where it was",
        source: "PikoCI/pikoci#681",
        cases: &[
            Case {
                step: Step::Inside(Daemon::Dockerd, steps::linear),
                ..inside("200 runs", Dockerd, Start::Image, Daemon::Dockerd, LINEAR)
            },
            Case {
                step: Step::Inside(Daemon::Containerd, steps::linear),
                ..inside("200 ctr runs", Containerd, Start::Image, Daemon::Containerd, LINEAR)
            },
        ],
    },
    Scenario {
        number: 5,
        name: "burst",
        area: "inner runs",
        proves: "deaths that share one SIGCHLD are all reaped",
        source: "signal(7): standard signals do not queue",
        cases: &[
            Case {
                step: Step::Inside(Daemon::Dockerd, steps::burst),
                ..inside("30 at once", Dockerd, Start::Image, Daemon::Dockerd, BURST)
            },
            Case {
                smoke: true,
                step: Step::Inside(Daemon::Sleeper, steps::burst_of_orphans),
                ..inside("30 at once", Init, Start::Image, Daemon::Sleeper, BURST)
            },
        ],
    },
    Scenario {
        number: 13,
        name: "outer-exec-orphan",
        area: "orphans",
        proves: "orphans of exec and of health checks are reaped",
        source: "moby/moby#47583",
        cases: &[
            Case {
                smoke: true,
                step: Step::Inside(Daemon::Dockerd, steps::outer_orphans),
                ..inside("10 execs", Dockerd, Start::Image, Daemon::Dockerd, ORPHANS)
            },
            Case {
                smoke: true,
                step: Step::Inside(Daemon::Containerd, steps::outer_orphans),
                ..inside("10 execs", Containerd, Start::Image, Daemon::Containerd, ORPHANS)
            },
            Case {
                smoke: true,
                step: Step::Inside(Daemon::Sleeper, steps::outer_orphans),
                ..inside("10 execs", Init, Start::Image, Daemon::Sleeper, ORPHANS)
            },
        ],
    },
    Scenario {
        number: 14,
        name: "inner-exec-orphan",
        area: "orphans",
        proves: "the count leaves out zombies that belong to an inner container",
        source: "containerd/containerd#9979",
        cases: &[
            Case {
                step: Step::Inside(Daemon::Dockerd, steps::inner_orphan),
                ..inside("not ours to reap", Dockerd, Start::Image, Daemon::Dockerd, NONE_BUT_FOREIGN)
            },
            Case {
                step: Step::Inside(Daemon::Containerd, steps::inner_orphan),
                ..inside("not ours to reap", Containerd, Start::Image, Daemon::Containerd, NONE_BUT_FOREIGN)
            },
        ],
    },
    Scenario {
        number: 16,
        name: "not-literally-dockerd",
        area: "invocations",
        proves: "arguments that the published workaround does not recognise are covered too",
        source: ISSUE,
        cases: &[
            inside("/usr/local/bin/dockerd", Dockerd, Start::Args(DOCKERD_BY_PATH), Daemon::Dockerd, FIVE),
            inside("containerd", Dockerd, Start::Args(&["containerd"]), Daemon::Containerd, FIVE),
            inside("sh -c dockerd", Dockerd, Start::Args(DOCKERD_IN_SHELL), Daemon::Dockerd, FIVE),
            inside("sh -c 'dockerd & exec sleep'", Dockerd, Start::Args(DOCKERD_BESIDE), Daemon::Dockerd, FIVE),
        ],
    },
    Scenario {
        number: 17,
        name: "entrypoint-override",
        area: "invocations",
        proves: "a replaced entrypoint meets the guards on PATH",
        source: "kubernetes `command:`, compose `entrypoint:`",
        cases: &[
            inside(
                "--entrypoint dockerd",
                Dockerd,
                Start::Entrypoint(DOCKERD_BY_NAME),
                Daemon::Dockerd,
                FIVE_WITHOUT_ENTRYPOINT,
            ),
            Case {
                smoke: true,
                ..inside(
                    "--entrypoint containerd",
                    Dockerd,
                    Start::Entrypoint(&["containerd"]),
                    Daemon::Containerd,
                    FIVE_WITHOUT_ENTRYPOINT,
                )
            },
            inside(
                "--entrypoint containerd",
                Containerd,
                Start::Entrypoint(&["containerd"]),
                Daemon::Containerd,
                FIVE_WITHOUT_ENTRYPOINT,
            ),
        ],
    },
    Scenario {
        number: 18,
        name: "double-init",
        area: "invocations",
        proves: "another init above or below changes nothing and says nothing",
        source: "krallin/tini#120",
        cases: &[
            Case {
                step: Step::Inside(Daemon::Dockerd, steps::init_below),
                wants: &[
                    Want::facts(Unsilenced, &[("tini's warning", "said")]),
                    Want::facts(Ours, &[("tini's warning", "not said")]),
                ],
                ..inside("docker-init below", Dockerd, Start::Image, Daemon::Dockerd, &[])
            },
            Case {
                step: Step::Inside(Daemon::Dockerd, steps::double_init),
                wants: &[Want::zombies(InitAbove, 5, 0)
                    .and_facts(&[("tini's warning", "not said"), ("exit code after one TERM", "0")])],
                ..inside("docker run --init", Dockerd, Start::Image, Daemon::Dockerd, &[])
            },
        ],
    },
    Scenario {
        number: 21,
        name: "restart",
        area: "restarts",
        proves: "a container that was killed comes up again, every time, whatever pid files it has left",
        source: "docker-library/docker#195",
        cases: &[
            whole("the image's command", Dockerd, steps::restart, RESTARTED),
            whole("--entrypoint dockerd", Dockerd, steps::restart_daemon, RESTARTED_BY_NAME),
            whole("the image's command", Containerd, steps::restart, RESTARTED_CONTAINERD),
            whole("--entrypoint containerd", Containerd, steps::restart_daemon, RESTARTED_CONTAINERD),
        ],
    },
    Scenario {
        number: 22,
        name: "graceful-stop",
        area: "signals",
        proves: "TERM stops the daemon as it does without an init, and also before there is a daemon",
        source: "buildkite/agent-stack-k8s#862",
        cases: &[
            Case {
                step: Step::Inside(Daemon::Dockerd, steps::graceful_stop),
                ..inside("TERM with a busy inner container", Dockerd, Start::Image, Daemon::Dockerd, GRACEFUL)
            },
            Case {
                step: Step::Inside(Daemon::Containerd, steps::graceful_stop),
                ..inside("TERM with a busy inner container", Containerd, Start::Image, Daemon::Containerd, GRACEFUL)
            },
            Case {
                step: Step::Whole(steps::stop_while_starting),
                wants: &[
                    Want::facts(Bare, &[("after TERM", "runs on")]),
                    Want::facts(Tini, &[("after TERM", "ended with 143")]),
                    Want::facts(Ours, &[("after TERM", "ended with 143")]),
                ],
                ..inside("TERM while keys are made", Dockerd, Start::Image, Daemon::Dockerd, &[])
            },
            Case {
                step: Step::Inside(Daemon::Sleeper, steps::stop_command),
                ..inside("TERM", Init, Start::Image, Daemon::Sleeper, ENDED_BY_TERM)
            },
        ],
    },
    Scenario {
        number: 23,
        name: "transparency",
        area: "signals",
        proves: "exit codes, standard input, terminal, signal masks and open files are those of the base",
        source: "docker/cli#3909",
        cases: &[
            whole("exit codes", Dockerd, steps::exit_codes, CODES),
            whole("exit codes", Containerd, steps::exit_codes, CODES),
            whole("exit codes", Init, steps::exit_codes_of_probe, CODES_OF_PROBE),
            whole("deaths by signal", Dockerd, steps::signal_codes, SIGNALS),
            whole("deaths by signal", Containerd, steps::signal_codes, SIGNALS),
            whole("deaths by signal", Init, steps::kill_command, KILLED),
            whole("standard input", Dockerd, steps::standard_input, SCRIPT),
            whole("terminal", Dockerd, steps::terminal, KEYS),
            whole("inheritance", Dockerd, steps::inheritance, LIKE_BASE),
            whole("inheritance", Containerd, steps::inheritance, LIKE_BASE),
        ],
    },
];

const fn whole(
    name: &'static str,
    image: crate::Kind,
    step: fn(&crate::stage::Stage<'_>, &Want) -> Result<crate::scenario::Finding, crate::Error>,
    wants: &'static [Want],
) -> Case {
    Case { name, image, smoke: false, start: Start::Image, step: Step::Whole(step), wants }
}

const CODES_OF_BASE: &[(&str, &str)] =
    &[("sh -c 'exit 0'", "0"), ("sh -c 'exit 3'", "3"), ("/no/such", "127"), ("/etc/passwd", "126")];
const CODES: &[Want] =
    &[Want::facts(Bare, CODES_OF_BASE), Want::facts(Tini, CODES_OF_BASE), Want::facts(Ours, CODES_OF_BASE)];
const CODES_OF_TINI: &[(&str, &str)] =
    &[("0", "0"), ("3", "3"), ("255", "255"), ("/no/such", "127"), ("no program", "126")];
/// A supervisor that only starts its own child may say what it likes of one that it cannot start: it is no control here.
const CODES_OF_PROBE: &[Want] = &[Want::facts(Tini, CODES_OF_TINI), Want::facts(Ours, CODES_OF_TINI)];
const KILLED_BY: &[(&str, &str)] = &[("exit code", "137")];
const KILLED: &[Want] = &[Want::facts(Tini, KILLED_BY), Want::facts(Ours, KILLED_BY)];
const SIGNALS_OF_TINI: &[(&str, &str)] = &[("TERM", "143"), ("KILL", "137")];
const SIGNALS: &[Want] = &[Want::facts(Tini, SIGNALS_OF_TINI), Want::facts(Ours, SIGNALS_OF_TINI)];
const SCRIPT_OF_BASE: &[(&str, &str)] = &[("output", "hi"), ("exit code", "5")];
const SCRIPT: &[Want] =
    &[Want::facts(Bare, SCRIPT_OF_BASE), Want::facts(Tini, SCRIPT_OF_BASE), Want::facts(Ours, SCRIPT_OF_BASE)];
const KEYS_OF_BASE: &[(&str, &str)] = &[("foreground after Ctrl-C", "ended"), ("exit code", "7")];
const KEYS: &[Want] =
    &[Want::facts(Bare, KEYS_OF_BASE), Want::facts(Tini, KEYS_OF_BASE), Want::facts(Ours, KEYS_OF_BASE)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_so_that_what_ends_a_container_comes_last() {
        assert!(SCENARIOS.is_sorted_by_key(|scenario| scenario.number));
    }

    #[test]
    fn every_case_judges_and_has_a_leg_to_be_compared_with() {
        for scenario in SCENARIOS {
            for case in scenario.cases {
                let judged = case.wants.iter().any(|want| want.leg.judges());
                let compared = case.wants.iter().any(|want| !want.leg.judges());
                // Under a second init there is nothing to compare with: its control is the first scenario's.
                assert!(judged && (compared || case.name == "docker run --init"), "{} {}", scenario.name, case.name);
            }
        }
    }

    #[test]
    fn whoever_counts_zombies_has_a_control_that_shows_them() {
        for case in SCENARIOS.iter().flat_map(|scenario| scenario.cases) {
            let counts = case.wants.iter().any(|want| want.leg == Ours && want.zombies.is_some());
            let bites =
                case.wants.iter().any(|want| want.leg == Bare && (want.zombies > Some(0) || !want.facts.is_empty()));
            assert!(!counts || bites, "{}", case.name);
        }
    }
}
