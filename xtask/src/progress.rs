//! What a person sees on stderr: one line a stage, a bar for transfers on a terminal, plain lines elsewhere. Never writes to stdout.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The column in which a stage's time ends.
const WIDTH: usize = 100;

/// Writes progress to stderr. Cheap to share by reference.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    bar: Mutex<ProgressBar>,
}

/// A stage that is running; its line is written when it is done.
#[derive(Debug)]
pub struct Stage<'a> {
    progress: &'a Progress,
    name: &'static str,
    subject: String,
    started: Instant,
    /// Bytes that have come or gone and bytes in all, of every blob so far.
    transfers: Mutex<BTreeMap<oci::Digest, (u64, u64)>>,
}

impl Progress {
    /// Progress on this process's stderr.
    pub fn stderr() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), bar: Mutex::new(ProgressBar::hidden()) }
    }

    /// Begins a stage such as `derive` of a subject such as `dind`; on a terminal, a spinner shows that it runs.
    pub fn stage(&self, name: &'static str, subject: impl Display) -> Stage<'_> {
        let subject = subject.to_string();
        self.replace_bar(|| {
            let spinner = ProgressBar::new_spinner();
            spinner.set_style(style("{spinner} {msg} {elapsed}"));
            spinner.set_message(format!("{name:<11} {subject}"));
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        });
        Stage { progress: self, name, subject, started: Instant::now(), transfers: Mutex::default() }
    }

    /// Writes one line that belongs to a stage and needs no time.
    pub fn note(&self, name: &str, subject: impl Display, text: impl Display) {
        self.line(&format!("{name:<11} {subject:<14} {text}"));
    }

    /// Writes one line below a stage.
    pub fn detail(&self, text: impl Display) {
        self.line(&format!("              {text}"));
    }

    fn line(&self, text: &str) {
        let bar = self.bar.lock().expect("no thread panics while it draws");
        bar.suspend(|| {
            // stderr is gone: there is nobody to tell, and the work goes on.
            let _ = writeln!(std::io::stderr().lock(), "{}", text.trim_end());
        });
    }

    fn replace_bar(&self, make: impl FnOnce() -> ProgressBar) {
        let mut bar = self.bar.lock().expect("no thread panics while it draws");
        bar.finish_and_clear();
        if self.terminal {
            let new = make();
            new.set_draw_target(ProgressDrawTarget::stderr());
            *bar = new;
        }
    }
}

impl Stage<'_> {
    /// Says what is being done now; shown on a terminal only, in place of the last such text.
    pub fn doing(&self, text: impl Display) {
        let bar = self.progress.bar.lock().expect("no thread panics while it draws");
        bar.set_message(format!("{:<11} {:<14} {text}", self.name, self.subject));
    }

    /// Ends the stage with its result and the time it took.
    pub fn done(self, text: impl Display) {
        self.progress.replace_bar(ProgressBar::hidden);
        let left = format!("{:<11} {:<14} {text}", self.name, self.subject);
        let time = duration(self.started.elapsed());
        let gap = WIDTH.saturating_sub(left.chars().count() + time.chars().count()).max(2);
        self.progress.line(&format!("{left}{:gap$}{time}", ""));
    }

    fn draw(&self, transfers: &BTreeMap<oci::Digest, (u64, u64)>) {
        let bar = self.progress.bar.lock().expect("no thread panics while it draws");
        bar.set_length(transfers.values().map(|(_, size)| size).sum());
        bar.set_position(transfers.values().map(|(reached, _)| reached).sum());
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // A stage that fails leaves no spinner behind; its error is printed by main.
        self.progress.replace_bar(ProgressBar::hidden);
    }
}

/// One bar for all blobs that are on their way: several are.
impl oci::Progress for Stage<'_> {
    fn started(&self, blob: &oci::Descriptor) {
        let mut transfers = self.transfers.lock().expect("no thread panics while it counts");
        if transfers.is_empty() {
            self.progress.replace_bar(|| {
                let bar = ProgressBar::new(0);
                bar.set_style(style("{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}"));
                bar.set_message(format!("{:<11} {:<14}", self.name, self.subject));
                bar
            });
        }
        transfers.insert(blob.digest, (0, blob.size));
        self.draw(&transfers);
    }

    fn reached(&self, blob: &oci::Descriptor, bytes: u64) {
        let mut transfers = self.transfers.lock().expect("no thread panics while it counts");
        transfers.insert(blob.digest, (bytes, blob.size));
        self.draw(&transfers);
    }

    fn finished(&self, blob: &oci::Descriptor) {
        self.reached(blob, blob.size);
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant of this file")
}

/// Seconds to a tenth below a minute, then minutes and seconds: `0.7 s`, `1 m 41 s`.
pub fn duration(time: Duration) -> String {
    if time < Duration::from_secs(60) {
        format!("{:.1} s", time.as_secs_f64())
    } else {
        format!("{} m {:02} s", time.as_secs() / 60, time.as_secs() % 60)
    }
}

/// Bytes in decimal units, as registries and package managers print them: `18.1 KB`, `109.8 MB`.
pub fn size(bytes: u64) -> String {
    let value = bytes as f64;
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} KB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.1} GB", value / 1e9),
    }
}
