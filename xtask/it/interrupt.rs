//! Ctrl-C at many moments of a real run: exit 2, one line that says so, and no mount, process, control group or file of ours left.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use libtest_mimic::{Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{command, ensure, folder, lacks, repository, trial_alone_if};

/// The lines of progress after which the trial presses Ctrl-C: between the stages, and in the middle of the suite.
const MOMENTS: [usize; 5] = [1, 2, 3, 5, 8];

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial_alone_if("interrupt::ctrl_c_leaves_nothing_behind", lacks(&["mmdebstrap", "tini-static"]), ctrl_c)]
}

fn ctrl_c() -> Result<(), Failed> {
    let folder = folder()?;
    let (mut hit, mut seen) = (0, false);
    for moment in MOMENTS {
        let out = folder.path().join(format!("out-{moment}"));
        let mut child = command(["build-images", "--base", "standin", "--suite", "smoke", "--fresh", "--out"])
            .arg(&out)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut progress = BufReader::new(child.stderr.take().ok_or("no stderr")?);
        let mut said = String::new();
        for _ in 0..moment {
            progress.read_line(&mut said)?;
        }
        // The look must not be blind: in the middle of the suite there is something to see.
        seen |= Traces::of(child.id())? != Traces::default();
        let pid = Pid::from_raw(i32::try_from(child.id())?).ok_or("no pid")?;
        // It may have ended already; then it was not hit, which is counted below.
        let _ = kill_process(pid, Signal::INT);
        progress.read_to_string(&mut said)?;
        let status = child.wait()?;
        if status.code() == Some(0) {
            continue;
        }
        hit += 1;
        ensure(status.code() == Some(2), format!("after {moment} lines: expected exit 2, found {status}\n{said}"))?;
        ensure(!out.join("digests.json").exists(), format!("after {moment} lines: a record was written\n{said}"))?;
        let left = Traces::of(child.id())?;
        ensure(left == Traces::default(), format!("after {moment} lines: {left:?} is left\n{said}"))?;
    }
    ensure(seen, "no trace was seen even while the suite was running: the look is blind")?;
    ensure(hit >= 3, format!("only {hit} of {} runs were still going when Ctrl-C came", MOMENTS.len()))
}

/// What one run could leave on this machine; other runs may be going on.
#[derive(Debug, Default, PartialEq)]
struct Traces {
    mounts: BTreeSet<String>,
    groups: BTreeSet<String>,
    processes: BTreeSet<String>,
    scratch: BTreeSet<String>,
}

impl Traces {
    /// Looks for the traces of the run that had this pid: all that it makes carries its name.
    fn of(run: u32) -> Result<Self, Failed> {
        let name = format!("dind-suite-{run}-");
        let target = repository().join("target");
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let mut groups = BTreeSet::new();
        find_groups(Path::new("/sys/fs/cgroup"), &name, &mut groups);
        let grouped =
            |pid: &String| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(&name));
        Ok(Self {
            mounts: mounts.lines().filter(|line| line.contains(&name)).map(str::to_owned).collect(),
            groups,
            processes: names("/proc").filter(grouped).collect(),
            scratch: names(target.join("cache/suite")).filter(|file| file.contains(&name)).collect(),
        })
    }
}

fn find_groups(folder: &Path, name: &str, found: &mut BTreeSet<String>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()) {
        if path.file_name().is_some_and(|own| own.to_string_lossy().starts_with(name)) {
            found.insert(path.display().to_string());
        }
        find_groups(&path, name, found);
    }
}

fn names(folder: impl AsRef<Path>) -> impl Iterator<Item = String> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned())
}
