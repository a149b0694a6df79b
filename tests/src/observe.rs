//! The counting rule, and nothing else: which tasks are zombies that an adopter failed to reap, and when a count is
//! final. Pure: it is given process tables and times since its start. It must never count by name.

use crate::engine::{ContainerPid, Process};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A zombie older than this is not on its way out: nobody waits for it.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the expected count must stand, looked at all the time.
pub(crate) const HOLD: Duration = Duration::from_secs(2);
/// After this, a count that neither stands nor is proved wrong is taken as it is found.
pub(crate) const LOOK_TIMEOUT: Duration = Duration::from_secs(15);

/// A process that no later one can be mistaken for: pid and start time.
type Identity = (ContainerPid, u64);

/// Who may have inherited an orphan of the daemon named `daemon`: PID 1 and, since an init need not be PID 1, every
/// process between PID 1 and the daemon. The name only finds the daemon; without it, PID 1 alone is meant.
pub(crate) fn adopters(table: &[Process], daemon: &str) -> BTreeSet<ContainerPid> {
    let parents: BTreeMap<ContainerPid, ContainerPid> =
        table.iter().map(|process| (process.pid, process.ppid)).collect();
    let mut found = BTreeSet::from([ContainerPid::INIT]);
    let mut next = table.iter().find(|process| process.comm == daemon).and_then(|process| parents.get(&process.pid));
    while let Some(pid) = next {
        if !found.insert(*pid) {
            break;
        }
        next = parents.get(pid);
    }
    // Parent 0 is outside of the PID namespace.
    found.remove(&ContainerPid(0));
    found
}

/// The zombies whose parent is an adopter.
pub(crate) fn zombies<'a>(table: &'a [Process], daemon: &str) -> Vec<&'a Process> {
    let adopters = adopters(table, daemon);
    table.iter().filter(|process| process.state == 'Z' && adopters.contains(&process.ppid)).collect()
}

/// The zombies whose parent is anybody else, as a container inside that does not reap its own.
pub(crate) fn foreign_zombies<'a>(table: &'a [Process], daemon: &str) -> Vec<&'a Process> {
    let adopters = adopters(table, daemon);
    table
        .iter()
        .filter(|process| process.state == 'Z' && process.ppid.0 != 0 && !adopters.contains(&process.ppid))
        .collect()
}

/// One count in progress: fed with tables until it is final.
#[derive(Debug)]
pub(crate) struct Count {
    expected: usize,
    daemon: &'static str,
    known: BTreeSet<Identity>,
    seen: BTreeMap<Identity, Duration>,
    held_since: Option<Duration>,
}

impl Count {
    /// `before` is the table from before the steps whose zombies are counted: what was a zombie then is not counted.
    pub(crate) fn new(expected: usize, daemon: &'static str, before: &[Process]) -> Count {
        let known = zombies(before, daemon).into_iter().map(identity).collect();
        Count { expected, daemon, known, seen: BTreeMap::new(), held_since: None }
    }

    /// `now` is the time since the count began. Returns the count once it is final.
    pub(crate) fn look(&mut self, now: Duration, table: &[Process]) -> Option<usize> {
        let fresh: BTreeSet<Identity> = zombies(table, self.daemon)
            .into_iter()
            .map(identity)
            .filter(|zombie| !self.known.contains(zombie))
            .collect();
        self.seen.retain(|zombie, _| fresh.contains(zombie));
        for zombie in &fresh {
            self.seen.entry(*zombie).or_insert(now);
        }
        if fresh.len() == self.expected {
            let since = *self.held_since.get_or_insert(now);
            return (now - since >= HOLD).then_some(fresh.len());
        }
        self.held_since = None;
        let stuck = self.seen.values().filter(|first| now - **first >= SETTLE_TIMEOUT).count();
        (stuck > self.expected || now >= LOOK_TIMEOUT).then_some(fresh.len())
    }
}

fn identity(process: &Process) -> Identity {
    (process.pid, process.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, ppid: i32, state: char, comm: &str) -> Process {
        Process {
            pid: ContainerPid(pid),
            ppid: ContainerPid(ppid),
            state,
            comm: comm.to_owned(),
            threads: 1,
            start: 100,
        }
    }

    fn table(zombies: usize) -> Vec<Process> {
        let dead = (0..zombies).map(|number| process(100 + i32::try_from(number).unwrap(), 1, 'Z', "any"));
        [process(1, 0, 'S', "dockerd")].into_iter().chain(dead).collect()
    }

    /// Feeds `(milliseconds, zombies)` and returns the time and value of the final count.
    fn check(expected: usize, looks: &[(u64, usize)]) -> Option<(u64, usize)> {
        let mut count = Count::new(expected, "dockerd", &table(0));
        looks.iter().find_map(|(at, zombies)| Some((*at, count.look(Duration::from_millis(*at), &table(*zombies))?)))
    }

    #[test]
    fn the_count_is_final_when_it_has_stood() {
        assert_eq!(check(0, &[(0, 0), (1999, 0), (2000, 0)]), Some((2000, 0)));
        assert_eq!(check(5, &[(0, 3), (500, 5), (2400, 5), (2500, 5)]), Some((2500, 5)));
    }

    #[test]
    fn a_zombie_on_its_way_out_starts_the_hold_anew() {
        assert_eq!(check(0, &[(0, 0), (1000, 1), (1100, 0), (3000, 0), (3100, 0)]), Some((3100, 0)));
    }

    #[test]
    fn a_zombie_that_stays_is_a_failure_also_when_it_comes_late() {
        assert_eq!(check(0, &[(0, 1), (4999, 1), (5000, 1)]), Some((5000, 1)));
        assert_eq!(check(0, &[(0, 0), (1900, 1), (6899, 1), (6900, 1)]), Some((6900, 1)));
    }

    #[test]
    fn one_too_many_and_one_too_few_are_found() {
        assert_eq!(check(5, &[(0, 6), (5000, 6)]), Some((5000, 6)));
        assert_eq!(check(5, &[(0, 4), (14_999, 4), (15_000, 4)]), Some((15_000, 4)));
    }

    #[test]
    fn zombies_from_before_are_not_counted_but_a_reused_pid_is() {
        let before = table(3);
        let mut count = Count::new(0, "dockerd", &before);
        assert_eq!(count.look(Duration::ZERO, &before), None);
        let mut after = before.clone();
        after[1].start += 1;
        assert_eq!(count.look(Duration::from_secs(1), &after), None);
        assert_eq!(count.look(Duration::from_secs(6), &after), Some(1));
    }

    #[test]
    fn parents_decide_and_names_do_not() {
        let table = [
            process(1, 0, 'S', "tini"),
            process(7, 1, 'S', "dind-init"),
            process(9, 7, 'S', "dockerd"),
            process(20, 1, 'S', "containerd-shim"),
            process(21, 20, 'S', "sleep"),
            process(30, 1, 'Z', "x"),
            process(31, 7, 'Z', "containerd-shim"),
            process(32, 9, 'Z', "containerd-shim"),
            process(33, 21, 'Z', "containerd-shim"),
            process(34, 0, 'Z', "containerd-shim"),
        ];
        let pids = |found: Vec<&Process>| found.iter().map(|process| process.pid.0).collect::<Vec<_>>();
        assert_eq!(pids(zombies(&table, "dockerd")), [30, 31]);
        assert_eq!(pids(foreign_zombies(&table, "dockerd")), [32, 33]);
    }
}
