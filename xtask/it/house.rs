//! The rules of the house that a program can check: edges between crates, heads and lengths of files, where `unsafe` may stand,
//! one place for versions, a schema that is fresh. Reads the repository, changes only images/schema.json, and that only when asked.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::support::{ensure, repository, trial};

const LINES_MAX: usize = 400;
const INIT_MAIN_LINES_MAX: usize = 300;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("house::edges", edges),
        trial("house::every_file_says_what_it_holds", heads),
        trial("house::files_fit_their_limit", lengths),
        trial("house::unsafe_stands_in_init_only", unsafe_places),
        trial("house::versions_stand_in_one_place", versions),
        trial("house::the_schemas_are_fresh", schema),
        trial("house::the_table_of_digests_is_fresh", digests),
        trial("house::ci_has_no_logic", ci),
        trial("house::every_fault_has_a_test_or_a_reason", faults),
    ]
}

/// DESIGN: `xtask -> suite -> oci`, `xtask -> oci`; init and probe reach the rest only as built bytes.
fn edges() -> Result<(), Failed> {
    let shell = Shell::new()?;
    shell.change_dir(repository());
    let metadata: Value =
        serde_json::from_str(&cmd!(shell, "cargo metadata --format-version 1 --no-deps --offline").quiet().read()?)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let members: BTreeSet<_> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut found = BTreeSet::new();
    for package in packages {
        for dependency in package["dependencies"].as_array().ok_or("a package lists no dependencies")? {
            let (from, to) =
                (package["name"].as_str().unwrap_or_default(), dependency["name"].as_str().unwrap_or_default());
            if members.contains(to) {
                found.insert((from, to));
            }
        }
    }
    let expected = BTreeSet::from([("suite", "oci"), ("xtask", "oci"), ("xtask", "suite")]);
    ensure(
        members == BTreeSet::from(["dind-init", "oci", "probe", "suite", "xtask"]),
        format!("members: {members:?}"),
    )?;
    ensure(found == expected, format!("edges: expected {expected:?}, found {found:?}"))
}

fn heads() -> Result<(), Failed> {
    for (path, text) in sources()? {
        ensure(text.starts_with("//!"), format!("{}: expected a first line that begins with //!", path.display()))?;
    }
    Ok(())
}

fn lengths() -> Result<(), Failed> {
    for (path, text) in sources()? {
        let limit = if path.ends_with("init/src/main.rs") { INIT_MAIN_LINES_MAX } else { LINES_MAX };
        let lines = text.lines().count();
        ensure(lines <= limit, format!("{}: expected at most {limit} lines, found {lines}", path.display()))?;
    }
    Ok(())
}

fn unsafe_places() -> Result<(), Failed> {
    let mut places = 0;
    for (path, text) in sources()? {
        let code = text.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
        let uses = code
            .filter(|line| line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe extern"))
            .count();
        // This file names the keyword in order to look for it.
        if uses > 0 && !path.ends_with("it/house.rs") {
            places += uses;
            ensure(path.starts_with(repository().join("init")), format!("{}: unsafe outside init/", path.display()))?;
        }
    }
    ensure(places > 0, "no unsafe found even in init/: the search is blind")
}

fn versions() -> Result<(), Failed> {
    for member in ["init", "oci", "tests", "tests/probe", "xtask"] {
        let manifest = fs::read_to_string(repository().join(member).join("Cargo.toml"))?;
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            } else if section.ends_with("dependencies]") && line.contains('=') {
                ensure(
                    line.contains("workspace = true"),
                    format!("{member}/Cargo.toml: expected `workspace = true`, found {line}"),
                )?;
            }
        }
    }
    Ok(())
}

fn schema() -> Result<(), Failed> {
    let path = repository().join("images/schema.json");
    expect_test::expect_file![path].assert_eq(&xtask::spec::json_schema()?);
    let path = repository().join("images/promotion.schema.json");
    expect_test::expect_file![path].assert_eq(&xtask::promotion::json_schema()?);
    Ok(())
}

/// README.md's table is what the promotion file and the records beside it say.
fn digests() -> Result<(), Failed> {
    let output = crate::support::xtask(["digests", "--check"])?;
    ensure(output.status.success(), crate::support::said(&output))
}

fn ci() -> Result<(), Failed> {
    let script = fs::read_to_string(repository().join(".ci/run"))?;
    let commands: Vec<_> = script.lines().filter(|line| line.starts_with("cargo ")).collect();
    ensure(commands == ["cargo xtask setup", "cargo xtask test"], format!(".ci/run runs {commands:?}"))
}

/// Every Rust file that git tracks or would track, with its text.
fn sources() -> Result<Vec<(PathBuf, String)>, Failed> {
    let shell = Shell::new()?;
    shell.change_dir(repository());
    let listed = cmd!(shell, "git ls-files --cached --others --exclude-standard *.rs").quiet().read()?;
    let paths: Vec<PathBuf> =
        listed.lines().map(|line| repository().join(Path::new(line))).filter(|path| path.exists()).collect();
    ensure(paths.len() > 20, format!("expected the sources, found {} files", paths.len()))?;
    paths.into_iter().map(|path| fs::read_to_string(&path).map(|text| (path, text)).map_err(Failed::from)).collect()
}

/// The faults of other tools that oci/README.md answers, by number.
const FAULTS: std::ops::RangeInclusive<u32> = 1..=59;

/// Every number is in the name of a test (`f07_…`), or in the page's list of what is not answered.
fn faults() -> Result<(), Failed> {
    let mut tested = BTreeSet::new();
    for (_, text) in sources()? {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let numbers = words.flat_map(|word| word.split('_')).filter(|part| part.len() == 3);
        tested.extend(numbers.filter_map(|part| part.strip_prefix('f')?.parse::<u32>().ok()));
    }
    let page = fs::read_to_string(repository().join("oci/README.md"))?;
    let (answered, rest) =
        page.split_once("Faults that are not answered").ok_or("the page lists no unanswered faults")?;
    let numbers = |text: &str| -> BTreeSet<u32> {
        let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
        let heads =
            rows.map(|row| row.split(|c: char| !(c.is_ascii_digit() || c == ',' || c == ' ')).next().unwrap_or(""));
        heads
            .flat_map(|head| head.split(',').filter_map(|number| number.trim().parse().ok()).collect::<Vec<_>>())
            .collect()
    };
    let (listed, excused) = (numbers(answered), numbers(rest));
    for fault in FAULTS {
        let is_tested = tested.contains(&fault);
        ensure(
            is_tested != excused.contains(&fault),
            format!("fault {fault}: expected a test or a reason, and not both"),
        )?;
        ensure(
            is_tested == listed.contains(&fault),
            format!("fault {fault}: tested: {is_tested}; the page says otherwise"),
        )?;
    }
    Ok(())
}
