//! Tables for people: columns that align, and each figure beside its ratio to the first row's. Measures nothing.

use crate::progress::size;

use super::contest::{Cost, Row};
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
    let ratio = |figure: f64, ours: f64| if ours > 0.0 { format!("{:.1}x", figure / ours) } else { "-".to_owned() };
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
}
