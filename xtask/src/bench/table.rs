//! Tables for people: columns that align, and each figure beside its ratio to the first row's. Measures nothing.

use crate::elf::Section;
use crate::progress::size;

use super::contest::{Cost, Row};
use super::init::{Group, Spread, Top};
use super::scale::Figures;

/// A table of what each row cost in the phase number `phase`, under a title. A row that did not take part says why.
pub fn costs(title: &str, rows: &[Row], phase: usize) -> String {
    let heads = ["", "requests", "", "up", "", "down", "", "memory", "", "time", ""];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    let cost = |row: &Row| row.costs.as_ref().ok().and_then(|costs| costs.get(phase).copied());
    let ours = rows.first().and_then(cost);
    let mut absent = String::new();
    for row in rows {
        match (&row.costs, cost(row), ours) {
            (Ok(_), Some(cost), Some(ours)) => lines.push(line(row.name, &cost, &ours)),
            (Err(reason), ..) => {
                let first = reason.lines().next().unwrap_or_default();
                absent.push_str(&format!("{}: no figures: {first}\n", row.name));
            }
            _ => {}
        }
    }
    format!("{title}\n{}{absent}\n", aligned(&lines))
}

fn line(name: &str, cost: &Cost, ours: &Cost) -> Vec<String> {
    let of = |figure: u64, ours: u64| ratio(figure as f64, ours as f64);
    vec![
        name.to_owned(),
        cost.requests.to_string(),
        of(cost.requests, ours.requests),
        size(cost.up),
        of(cost.up, ours.up),
        size(cost.down),
        of(cost.down, ours.down),
        size(cost.memory),
        of(cost.memory, ours.memory),
        format!("{:.2} s", cost.time.as_secs_f64()),
        ratio(cost.time.as_secs_f64(), ours.time.as_secs_f64()),
    ]
}

fn ratio(figure: f64, ours: f64) -> String {
    if ours > 0.0 { format!("{:.1}x", figure / ours) } else { "-".to_owned() }
}

/// Figures of inits: least, middle and most, and the ratio of the middle to the first row's.
pub fn inits(group: &Group) -> String {
    let heads = group.columns.iter().flat_map(|column| [column.head.to_owned(), String::new()]);
    let mut lines = vec![std::iter::once(String::new()).chain(heads).collect()];
    for row in &group.rows {
        let ours = group.rows.first().map(|ours| &ours.figures);
        let cells = group.columns.iter().zip(&row.figures).enumerate().flat_map(|(number, (column, figure))| {
            let ours = ours.and_then(|ours| ours.get(number)).map_or(0.0, |ours| ours.median);
            [spread(figure, column.top), ratio(figure.median, ours)]
        });
        lines.push(std::iter::once(row.name.to_owned()).chain(cells).collect::<Vec<_>>());
    }
    format!("{}: {}\n{}\n", group.name, group.what, aligned(&lines))
}

/// `least/middle/most`, or one figure where they are the same.
fn spread(figure: &Spread, top: Top) -> String {
    let top = if top == Top::P99 { figure.p99 } else { figure.max };
    let all = [figure.min, figure.median, top].map(short);
    if all.iter().all(|one| *one == all[0]) { all[0].clone() } else { all.join("/") }
}

/// Whole numbers, but two digits of what is small.
fn short(figure: f64) -> String {
    if figure != 0.0 && figure.fract() != 0.0 && figure < 10.0 {
        format!("{figure:.1}")
    } else {
        format!("{figure:.0}")
    }
}

/// Where the bytes of a program are: its sections, and in each the symbols, largest first. `file` is its size as it is shipped.
pub fn symbols(title: &str, sections: &[Section], file: u64) -> String {
    let mut lines = vec![["bytes", "section", "symbol"].map(str::to_owned).to_vec()];
    let row = |bytes: u64, section: &str, symbol: &str| vec![bytes.to_string(), section.to_owned(), symbol.to_owned()];
    for section in sections {
        lines.push(row(section.size, &section.name, if section.in_file { "total" } else { "total, not in the file" }));
        let symbols = section.symbols.iter().map(|symbol| row(symbol.size, &section.name, &symbol.name));
        lines.extend(symbols);
    }
    let held: u64 = sections.iter().filter(|section| section.in_file).map(|section| section.size).sum();
    lines.push(row(file.saturating_sub(held), "", "headers, names of sections, padding between them"));
    lines.push(row(file, "", "the file"));
    format!("{title}\n{}\n", listed(&lines))
}

/// The curve: what an image costs as their number grows. `blobs` are the blobs that the registry then holds of each run.
pub fn curve(title: &str, figures: &[Figures]) -> String {
    let heads = ["images", "time an image", "requests an image", "blobs sent an image", "up an image", "memory"];
    let mut lines = vec![heads.map(str::to_owned).to_vec()];
    for run in figures {
        let images = run.images as f64;
        let each = |count: usize| format!("{:.1}", count as f64 / images);
        lines.push(vec![
            run.images.to_string(),
            format!("{:.3} s", run.time.as_secs_f64() / images),
            each(run.requests.len()),
            each(run.blobs_sent()),
            size(run.up / run.images as u64),
            size(run.peak),
        ]);
    }
    format!("{title}\n{}\n", aligned(&lines))
}

/// Lines of columns: a figure to the right, then text to the left.
fn listed(lines: &[Vec<String>]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or_default();
    let (figures, names) = (width(0), width(1));
    let line =
        |line: &Vec<String>| format!("{:>figures$}  {:<names$}  {}", line[0], line[1], line[2]).trim_end().to_owned();
    lines.iter().map(line).map(|line| line + "\n").collect()
}

/// Lines of columns: the first one to the left, figures to the right.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::init::{Column, Row as Figures};
    use crate::elf::Symbol;

    #[test]
    fn figures_stand_beside_their_ratios_and_the_absent_say_why() {
        let cost = |requests| Cost { requests, up: 1000, down: 0, memory: 2_000_000, time: Duration::from_millis(500) };
        let rows = [
            Row { name: "ours", costs: Ok(vec![cost(10)]) },
            Row { name: "theirs", costs: Ok(vec![cost(25)]) },
            Row { name: "other", costs: Err("other is not installed\nmore".to_owned()) },
        ];
        expect_test::expect![[r#"
            first
                    requests            up        down     memory          time
            ours          10  1.0x  1.0 KB  1.0x   0 B  -  2.0 MB  1.0x  0.50 s  1.0x
            theirs        25  2.5x  1.0 KB  1.0x   0 B  -  2.0 MB  1.0x  0.50 s  1.0x
            other: no figures: other is not installed

        "#]]
        .assert_eq(&costs("first", &rows, 0));
    }

    #[test]
    fn inits_show_their_spread_and_the_ratio_of_the_middle() {
        let figure = |min, median, p99, max| Spread { min, median, p99, max };
        let row = |name, scale: f64| Figures {
            name,
            figures: vec![figure(200.0, 300.0 * scale, 900.0, 950.4), figure(0.0, 0.0, 0.25, 2.5)],
        };
        let group = Group {
            name: "start".to_owned(),
            what: "of one".to_owned(),
            columns: vec![Column { head: "time, us", top: Top::Max }, Column { head: "late, ms", top: Top::P99 }],
            rows: vec![row("ours", 1.0), row("theirs", 1.5)],
        };
        expect_test::expect![[r#"
            start: of one
                       time, us        late, ms
            ours    200/300/950  1.0x   0/0/0.2  -
            theirs  200/450/950  1.5x   0/0/0.2  -

        "#]]
        .assert_eq(&inits(&group));
    }

    #[test]
    fn symbols_stand_below_their_section() {
        let symbol = |name: &str, size| Symbol { name: name.to_owned(), size };
        let section = |name: &str, size, in_file, symbols| Section { name: name.to_owned(), size, in_file, symbols };
        let sections = [
            section(".text", 1500, true, vec![symbol("main", 1000), symbol("(no name)", 500)]),
            section(".bss", 8, false, vec![symbol("state", 8)]),
        ];
        expect_test::expect![[r#"
            the init
            bytes  section  symbol
             1500  .text    total
             1000  .text    main
              500  .text    (no name)
                8  .bss     total, not in the file
                8  .bss     state
              500           headers, names of sections, padding between them
             2000           the file

        "#]]
        .assert_eq(&symbols("the init", &sections, 2000));
    }
}
