//! The table of who passes what in init/README.md: read, compared, and written anew where `UPDATE_EXPECT` is set, so that
//! no cell is typed. It must never decide what passes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{env, fmt, fs};

use super::process::{Checked, ensure};
use super::subject::Kind;
use super::{Check, all_checks, is_asked};

const README: &str = "../init/README.md";
const START: &str = "<!-- Who passes what. Generated: UPDATE_EXPECT=1 cargo test -p suite --test it -- init:: -->\n";
const END: &str = "<!-- The end of what is generated. -->\n";

/// Requirements without a check are listed under this heading, one `- N: reason` each.
const OUT_OF_SCOPE: &str = "### Out of scope\n";

/// How many requirements there are.
const REQUIREMENTS: u32 = 41;

/// What a check says of an init.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Pass,
    Fail,
    /// It cannot be asked.
    NotAsked,
}

impl fmt::Display for Cell {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::NotAsked => "–",
        })
    }
}

impl Cell {
    fn parse(text: &str) -> Option<Self> {
        [Self::Pass, Self::Fail, Self::NotAsked].into_iter().find(|cell| cell.to_string() == text)
    }
}

type Cells = BTreeMap<(String, Kind), Cell>;

/// Held while the file is read and written.
static FILE: Mutex<()> = Mutex::new(());

/// Whether the table is to become what is found.
pub(crate) fn is_updated() -> bool {
    env::var_os("UPDATE_EXPECT").is_some()
}

/// What the table has, if it has it.
pub(crate) fn expected(check: &str, kind: Kind) -> Checked<Option<Cell>> {
    let _held = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(read()?.1.get(&(check.to_owned(), kind)).copied())
}

/// Puts what was found into the table.
pub(crate) fn update(check: &str, kind: Kind, found: Cell) -> Checked {
    let _held = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let (text, mut cells) = read()?;
    cells.insert((check.to_owned(), kind), found);
    write(&text, &cells)
}

/// The table has a row for each check and no other, and says of whom it cannot be asked.
pub(crate) fn is_complete() -> Checked {
    let _held = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let (text, cells) = read()?;
    if is_updated() {
        return write(&text, &cells);
    }
    let table = section(&text)?;
    let hint = "hint: UPDATE_EXPECT=1 cargo test -p suite --test it -- init::";
    let is_whole = table == render(&cells) && !table.contains("?");
    ensure(is_whole, format!("the table in init/README.md: expected one full row for each check\n{hint}"))
}

/// Each requirement is checked by its number, or listed with a reason, never both.
pub(crate) fn covers_every_requirement() -> Checked {
    let (text, _) = read()?;
    let list = text.split_once(OUT_OF_SCOPE).ok_or("init/README.md has no list of what is out of scope")?.1;
    let listed = |number: u32| list.lines().any(|line| line.starts_with(&format!("- {number}: ")));
    let checked = |number: u32| all_checks().iter().any(|(name, _, _)| name.starts_with(&format!("r{number:02}_")));
    let wrong: Vec<u32> = (1..=REQUIREMENTS).filter(|number| listed(*number) == checked(*number)).collect();
    ensure(wrong.is_empty(), format!("requirements neither checked nor listed, or both: {wrong:?}"))
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(README)
}

fn section(text: &str) -> Checked<&str> {
    let (_, rest) = text.split_once(START).ok_or("init/README.md has no generated table")?;
    rest.split_once(END).map(|(table, _)| table).ok_or_else(|| "init/README.md: the table has no end".to_owned())
}

/// The file and its cells.
fn read() -> Checked<(String, Cells)> {
    let text = fs::read_to_string(path()).map_err(|error| format!("read {}: {error}", path().display()))?;
    let rows = section(&text)?.lines().filter_map(|line| line.strip_prefix("| `")).collect::<Vec<_>>();
    let mut cells = Cells::new();
    for row in rows {
        let mut fields = row.split(" | ").map(|field| field.trim_matches(['`', ' ', '|']));
        let name = fields.next().unwrap_or_default().to_owned();
        cells.extend(
            Kind::ALL
                .into_iter()
                .zip(fields)
                .filter_map(|(kind, field)| Some(((name.clone(), kind), Cell::parse(field)?))),
        );
    }
    Ok((text, cells))
}

fn write(text: &str, cells: &Cells) -> Checked {
    let (before, rest) = text.split_once(START).ok_or("init/README.md has no generated table")?;
    let after = rest.split_once(END).ok_or("init/README.md: the table has no end")?.1;
    let text = [before, START, &render(cells), END, after].concat();
    let next = path().with_extension("md.next");
    let failed = |error| format!("write {}: {error}", path().display());
    fs::write(&next, text).map_err(failed)?;
    fs::rename(&next, path()).map_err(failed)
}

/// A row for each check: requirements first, then the rest by name. What is not known yet is `?`.
fn render(cells: &Cells) -> String {
    let names: Vec<String> = Kind::ALL.iter().map(|kind| kind.name().replace('_', " ")).collect();
    let mut text = format!("\n| check | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(Kind::ALL.len()));
    let mut checks: Vec<Check> = all_checks();
    checks.sort_by_key(|(name, _, _)| (!is_requirement(name), *name));
    for check in &checks {
        let cell = |kind: Kind| match cells.get(&(check.0.to_owned(), kind)) {
            _ if !is_asked(check, kind) => Cell::NotAsked.to_string(),
            Some(Cell::NotAsked) | None => "?".to_owned(),
            Some(cell) => cell.to_string(),
        };
        let row: Vec<String> = Kind::ALL.into_iter().map(cell).collect();
        text += &format!("| `{}` | {} |\n", check.0, row.join(" | "));
    }
    text + "\n"
}

fn is_requirement(name: &str) -> bool {
    name.strip_prefix('r').is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
}
