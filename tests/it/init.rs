//! The init, tested as real processes, beside the packaged ones. Nothing is judged by its own report: process states come
//! from /proc, and where a check could be blind a control is seen failing it.
//!
//! A check is named after its requirement (`r01_` to `r41_`), or by its kind: `bad_` input, `cli_` what users of other
//! inits type, `guard_` a call by a daemon's name, `stale_` files of a killed container.
//!
//! The binary comes from the environment variable `DIND_INIT`, one for another machine, which an emulator runs, from
//! `DIND_INIT_AARCH64`; without it, or without root, the trials are ignored.

#[path = "init/command.rs"]
mod command;
#[path = "init/early.rs"]
mod early;
#[path = "init/ending.rs"]
mod ending;
#[path = "init/guards.rs"]
mod guards;
#[path = "init/helper.rs"]
mod helper;
#[path = "init/hostile.rs"]
mod hostile;
#[path = "init/inherited.rs"]
mod inherited;
#[path = "init/options.rs"]
mod options;
#[path = "init/process.rs"]
mod process;
#[path = "init/quiet.rs"]
mod quiet;
#[path = "init/races.rs"]
mod races;
#[path = "init/reaping.rs"]
mod reaping;
#[path = "init/signals.rs"]
mod signals;
#[path = "init/storm.rs"]
mod storm;
#[path = "init/subject.rs"]
mod subject;
#[path = "init/table.rs"]
mod table;
#[path = "init/targets.rs"]
mod targets;
#[path = "init/terminal.rs"]
mod terminal;

use std::thread;
use std::time::Duration;

use libtest_mimic::{Completion, Failed, Trial};

pub(crate) use helper::run as helper;
use process::Checked;
use subject::{Ask, Kind, Subject};
use table::Cell;

/// Longest wait for a state in a peer of which the table says that it does not come. A peer that hangs costs no more.
const FAILING_PEER: Duration = Duration::from_secs(2);

/// How often a peer is asked before the table counts as wrong.
const ATTEMPTS: usize = 3;

/// The same where the table is written anew and nothing is known.
const UNKNOWN_PEER: Duration = Duration::from_secs(8);

/// A check of one init: its name, what it does, what the init is asked for.
pub(crate) type Check = (&'static str, fn(&Subject) -> Checked, &'static [Ask]);

/// A program that a check must find wanting, and what shows it.
pub(crate) type Control = (&'static str, fn() -> Checked);

/// Checks that would judge the emulator: its process is not the init alone.
const NOT_EMULATED: &[&str] = &[
    // It refuses PR_SET_CHILD_SUBREAPER (qemu 7.2).
    "r02_adopts_orphans_where_it_is_not_pid_1",
    "bad_command_line_too_long",
    "r02_adopts_orphans_where_it_is_asked_to",
    "r02_is_silent_where_it_is_not_pid_1",
    "r02_reaps_below_a_pid_1_that_does_not",
    "cli_tini_subreaper",
    // It takes SIGSEGV and SIGBUS for its own faults unless the init is waiting just then.
    "r10_forwards_every_signal_as_pid_1",
    "r10_forwards_every_signal_elsewhere",
    "r11_no_signal_ends_or_stops_it",
    "r11_no_signal_ends_or_stops_it_in_group_mode",
    "r11_no_signal_ends_or_stops_it_when_it_talks",
    // It gives real-time signals other numbers, keeps some, and catches what was ignored.
    "r06_turns_a_killing_signal_into_128_and_its_number",
    "r10_forwards_the_signals_that_libc_keeps",
    "r34_rewrites_by_name",
    "r23_keeps_blocked_and_ignored_signals",
    "r23_keeps_sigchld_as_it_was",
    // Its own memory, files and threads are the process's.
    "bad_limit_of_files_is_taken_away",
    "r28_does_not_stop_where_no_shell_could_wake_it",
    "r29_keeps_no_descriptor_that_it_was_given",
    "r31_allocates_nothing",
    "r31_has_no_heap",
    "r31_needs_40_kb",
    "r39_is_one_static_file",
    "r39_maps_nothing_writable_and_executable",
    // It is the emulator that starts slowly, and that is refused calls.
    "r24_loses_few_early_terms",
    "bad_no_process_left",
    "bad_no_process_left_for_a_child",
    "bad_seccomp_refuses_all_of_them",
    "bad_seccomp_refuses_pidfds",
    "bad_seccomp_refuses_prctl",
    // It tells the program another name than it was called by.
    "cli_dumb_init_leads_a_session",
    "cli_dumb_init_setsid_0",
];

/// All checks.
fn all_checks() -> Vec<Check> {
    let of_requirements = [reaping::CHECKS, storm::CHECKS, quiet::CHECKS, command::CHECKS, inherited::CHECKS];
    let of_signals = [signals::CHECKS, targets::CHECKS, races::CHECKS, early::CHECKS, ending::CHECKS, terminal::CHECKS];
    let of_the_rest = [options::CHECKS, hostile::CHECKS, guards::CHECKS];
    [of_requirements.concat(), of_signals.concat(), of_the_rest.concat()].concat()
}

/// Whether an init can be asked at all.
fn is_asked((name, _, asks): &Check, kind: Kind) -> bool {
    let is_emulated = kind == Kind::OursOnAarch64;
    asks.iter().all(|ask| kind.words(*ask).is_some()) && !(is_emulated && NOT_EMULATED.contains(name))
}

/// All trials.
pub(crate) fn trials() -> Vec<Trial> {
    let checks = all_checks();
    let ours = Kind::OURS.into_iter().flat_map(|kind| checks.iter().map(move |check| (kind, *check)));
    let ours = ours.filter(|(kind, check)| is_asked(check, *kind)).map(|(kind, check)| trial_of_ours(kind, check));
    let peers = checks.iter().filter(|check| Kind::PEERS.into_iter().any(|kind| is_asked(check, kind)));
    let peers = peers.map(|check| trial_of_peers(*check));
    let controls = [reaping::CONTROLS, quiet::CONTROLS, races::CONTROLS, ending::CONTROLS].concat();
    let controls = controls.into_iter().map(|(name, control)| {
        as_root(format!("init::control::{name}"), move || Ok(control().map(|()| Completion::Completed)?))
    });
    let table = [
        ("has_a_row_for_each_check", table::is_complete as fn() -> Checked),
        ("covers_every_requirement", table::covers_every_requirement),
    ];
    let table = table.map(|(name, check)| Trial::test(format!("init::table::{name}"), move || Ok(check()?)));
    ours.chain(peers).chain(controls).chain(table).collect()
}

/// A trial that is ignored without root.
fn as_root(name: String, check: impl FnOnce() -> Result<Completion, Failed> + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        if !rustix::process::geteuid().is_root() {
            return crate::fixture::skip("needs root for new PID namespaces");
        }
        check()
    })
}

/// Ours has to pass.
fn trial_of_ours(kind: Kind, (name, check, asks): Check) -> Trial {
    as_root(format!("init::{}::{name}", kind.name()), move || {
        let subject = match kind.find() {
            Err(reason) => return crate::fixture::skip(reason),
            Ok(subject) => subject,
        };
        if asks.contains(&Ask::KernelReaps) && !quiet::kernel_can_reap()? {
            // Continuous integration may well run an older kernel: this is no skip that it could forbid.
            return Ok(Completion::ignored_with("needs Linux 6.16"));
        }
        check(&subject)?;
        if table::is_updated() {
            table::update(name, kind, Cell::Pass)?;
        }
        Ok(Completion::Completed)
    })
}

/// Peers have to do what the table says, each in a thread of its own.
fn trial_of_peers(check: Check) -> Trial {
    as_root(format!("init::peers::{}", check.0), move || {
        let asked = Kind::PEERS.into_iter().filter(|kind| is_asked(&check, *kind));
        let subjects = match asked.map(Kind::find).collect::<Checked<Vec<_>>>() {
            Err(reason) => return crate::fixture::skip(reason),
            Ok(subjects) => subjects,
        };
        let threads: Vec<_> =
            subjects.into_iter().map(|subject| thread::spawn(move || compare(check, &subject))).collect();
        let outcomes =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("it panicked".to_owned())));
        let wrong: Vec<String> = outcomes.filter_map(Result::err).collect();
        if wrong.is_empty() { Ok(Completion::Completed) } else { Err(wrong.join("\n").into()) }
    })
}

/// An error unless the table says of a peer what is found; or puts it there. On a machine that is busy with other checks a peer may fail once
/// what it passes: what the table says has to be found in one of a few attempts.
fn compare(check: Check, subject: &Subject) -> Checked {
    let (name, ..) = check;
    if table::is_updated() {
        let found = outcome(check, subject, UNKNOWN_PEER);
        return table::update(name, subject.kind, found.map_or(Cell::Fail, |()| Cell::Pass));
    }
    let expected = table::expected(name, subject.kind)?;
    let limit = match expected {
        Some(Cell::Pass) => process::DEADLINE,
        Some(Cell::Fail) => FAILING_PEER,
        Some(Cell::NotAsked) | None => UNKNOWN_PEER,
    };
    let mut why = String::new();
    for _ in 0..ATTEMPTS {
        let found = outcome(check, subject, limit);
        if expected == Some(if found.is_ok() { Cell::Pass } else { Cell::Fail }) {
            return Ok(());
        }
        why = found.err().map_or_else(|| "it passed".to_owned(), |error| error.to_string());
    }
    let said = expected.map_or_else(|| "nothing".to_owned(), |cell| cell.to_string());
    Err(format!("{}: the table says {said}, found {ATTEMPTS} times something else: {why}", subject.kind.name()))
}

fn outcome((_, check, _): Check, subject: &Subject, limit: Duration) -> Checked {
    process::within(limit, || check(subject))
}
