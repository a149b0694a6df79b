//! `bench init`: that it sees what it measures. Sizes, sleep and zombies are exact and held to what they must be, each with a control; no trial
//! asks how long anything took.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use xtask::bench::init::{Contestant, NONE, Storm, peers, storm};
use xtask::elf;
use xtask::stages::init::{build, build_probe};

use crate::support::{command, ensure, folder, lacks, repository, run, said, trial, trial_if};

const ORPHANS: usize = 200;
const INITS: [&str; 4] = ["tini", "tini-static", "catatonit", "dumb-init"];

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial_if("inits::every_figure_is_one_that_can_be", lacks(&INITS), figures),
        trial_if("inits::a_storm_shows_what_is_not_reaped", lacks(&[]), control),
        trial_if("inits::what_is_the_machines_own_is_out_of_reach", lacks(&["tini"]), out_of_reach),
        trial_if("inits::the_sizes_of_symbols_add_up_to_the_file", lacks(&[]), symbols),
        trial("inits::a_missing_package_is_one_clear_error", missing),
    ]
}

/// A contestant's figures of a group, by the group's columns.
fn row<'a>(report: &'a Value, group: &str, name: &str) -> Result<&'a Vec<Value>, Failed> {
    let find = |list: &'a Value, name: &str| list.as_array()?.iter().find(|one| one["name"] == name);
    let row = find(&report["groups"], group).and_then(|group| find(&group["rows"], name));
    Ok(row.and_then(|row| row["figures"].as_array()).ok_or_else(|| format!("{group}: {name} has no figures"))?)
}

fn figures() -> Result<(), Failed> {
    let orphans = ORPHANS.to_string();
    let text = run(&mut command(["bench", "init", "--json", "--rounds", "1", "--orphans", &orphans]))?;
    let report: Value = serde_json::from_str(&text)?;
    let program = build_init()?;
    let mut files = peers().map_err(|error| text_of(&error))?;
    files.extend(["ours", "ours, wait loop"].map(|name| (name, program.clone())));
    for (name, file) in &files {
        let is = |group: &str, column: usize, figure: &str, expected: u64| -> Result<(), Failed> {
            let found = &row(&report, group, name)?[column][figure];
            ensure(
                found.as_f64() == Some(expected as f64),
                format!("{group}: {name}: expected {expected}, found {found}"),
            )
        };
        is("size", 0, "max", fs::metadata(file)?.len())?;
        for storm in ["stream", "burst"] {
            is(storm, 4, "max", 0)?;
        }
        // tini looks around once a second: where the others are said to sleep, somebody looked.
        if name.starts_with("tini") {
            let switches = row(&report, "idle", name)?[0]["max"].as_f64();
            ensure(switches > Some(0.0), format!("{name}: expected context switches while idle, found {switches:?}"))?;
        } else {
            is("idle", 0, "max", 0)?;
        }
    }
    for (group, names) in
        [("start", vec![NONE, "ours"]), ("signals", vec![NONE, "dumb-init"]), ("memory", vec!["ours"])]
    {
        for name in names {
            for figure in row(&report, group, name)? {
                let order = ["min", "median", "p99", "max"].map(|key| figure[key].as_f64().unwrap_or(-1.0));
                ensure(order.is_sorted() && order[0] > 0.0, format!("{group}: {name}: {figure}"))?;
            }
        }
    }
    Ok(())
}

/// Under a PID 1 that reaps nothing but its child, every orphan is a zombie that stays.
fn control() -> Result<(), Failed> {
    let probe = build_probe(repository(), &oci::Platform::host()).map_err(|error| text_of(&error))?;
    let words = vec![probe.path.into(), "no-reap".into(), "--".into()];
    let contestant = Contestant { name: "no-reap", words, variable: None };
    for kind in [Storm::Stream, Storm::Burst] {
        let group = storm(kind, &contestant, ORPHANS, &oci::Interrupt::default()).map_err(|error| text_of(&error))?;
        for column in ["zombies at most", "left"] {
            let number = group.columns.iter().position(|one| one.head == column).ok_or("no such column")?;
            let found = group.rows[0].figures[number].max;
            ensure(found == ORPHANS as f64, format!("{}: {column}: expected {ORPHANS}, found {found}", kind.name()))?;
        }
    }
    Ok(())
}

/// An init may remove pid files from /run and take the terminal: those are not this machine's.
fn out_of_reach() -> Result<(), Failed> {
    let _own = tempfile::NamedTempFile::new_in("/run")?;
    let one = |check: &str| {
        let script = format!("{check} || exit 9; exec tini -- \"$@\"");
        let words = ["sh", "-c", &script, "sh"].map(Into::into).to_vec();
        let contestant = Contestant { name: "tini", words, variable: None };
        storm(Storm::Stream, &contestant, 1, &oci::Interrupt::default()).map_err(|error| text_of(&error))
    };
    one("[ -z \"$(ls -A /run)\" ] && [ \"$(stat -c %t:%T /dev/tty)\" = 1:3 ]")?;
    // The control: the check is made, and it counts.
    let error = one("[ -n \"$(ls -A /run)\" ]").err().unwrap_or_default();
    ensure(error.ends_with("tini ended early: exit status: 9"), format!("expected exit status 9, found {error:?}"))
}

fn symbols() -> Result<(), Failed> {
    let text = run(&mut command(["bench", "init", "--size"]))?;
    let mut rows = Vec::new();
    for line in text.lines().filter(|line| line.trim_start().starts_with(|first: char| first.is_ascii_digit())) {
        let (bytes, rest) = line.trim_start().split_once(' ').ok_or("a line without columns")?;
        let (section, symbol) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
        rows.push((bytes.parse::<u64>()?, section.to_owned(), symbol.trim().to_owned()));
    }
    // What is shipped has no symbols, but the same sections.
    let shipped = build_init()?;
    let sections = elf::sections(&shipped).map_err(|error| text_of(&error))?;
    ensure(sections.iter().any(|section| section.name == ".text"), format!("{sections:?}"))?;
    for section in &sections {
        let nameless: Vec<_> = section.symbols.iter().map(|symbol| symbol.name.as_str()).collect();
        ensure(section.size == 0 || nameless == [elf::NAMELESS], format!("{}: {nameless:?}", section.name))?;
        let of: Vec<_> = rows.iter().filter(|row| row.1 == section.name).collect();
        let (totals, symbols): (Vec<_>, Vec<_>) = of.into_iter().partition(|row| row.2.starts_with("total"));
        let sum: u64 = symbols.iter().map(|row| row.0).sum();
        let said: Vec<_> = totals.iter().map(|row| row.0).collect();
        ensure(
            sum == section.size && said == [section.size],
            format!("{}: expected {} bytes, found {said:?} and a sum of {sum}", section.name, section.size),
        )?;
    }
    let main = rows.iter().find(|row| row.1 == ".text" && row.2 == "main");
    ensure(main.is_some_and(|row| row.0 > 0), format!("the symbols have no main\n{text}"))?;
    let expected = fs::metadata(&shipped)?.len();
    ensure(text.trim_end().ends_with("the file"), format!("no last line\n{text}"))?;
    let last = rows.last().map(|row| row.0);
    ensure(last == Some(expected), format!("the file: expected {expected} bytes, found {last:?}"))
}

fn missing() -> Result<(), Failed> {
    let folder = folder()?;
    for tool in ["tini", "tini-static"] {
        symlink("/bin/true", folder.path().join(tool))?;
    }
    let output = command(["bench", "init"]).env("PATH", folder.path()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure(output.status.code() == Some(2) && output.stdout.is_empty(), said(&output))?;
    ensure(errors.starts_with("error: find catatonit ("), said(&output))?;
    ensure(errors.ends_with("\nhint: cargo xtask setup installs it (Debian package catatonit)\n"), said(&output))
}

fn build_init() -> Result<PathBuf, Failed> {
    let (host, interrupt) = (oci::Platform::host(), oci::Interrupt::default());
    let built = build(repository(), &host, &interrupt, &mut |_| ()).map_err(|error| text_of(&error))?;
    Ok(built.path)
}

fn text_of(error: &anyhow::Error) -> String {
    format!("{error:#}")
}
