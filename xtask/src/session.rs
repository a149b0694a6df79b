//! What every command and stage is given: the facts, where progress goes, and the flag that ends the work. Decides nothing.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};
use oci::Interrupt;

use crate::plan::Facts;
use crate::progress::Progress;

/// What every command is given.
#[derive(Debug)]
pub struct Session {
    /// What the process was given besides its arguments.
    pub facts: Facts,
    /// Where progress goes.
    pub progress: Progress,
    /// Set once the user wants to stop.
    pub interrupt: Interrupt,
}

/// Writes data to stdout. A reader that has gone (`| head -1`) has what it wanted; any other failure is an error.
pub fn print(data: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(data.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to stdout"),
    }
}

/// Writes an error to stderr: one line with the chain of causes, and below it what each of them advises.
pub fn complain(error: &anyhow::Error) {
    let (mut chain, mut hints) = (Vec::new(), String::new());
    for cause in error.chain() {
        let text = cause.to_string();
        let (said, advice) =
            text.split_once("\nhint: ").map_or((text.as_str(), None), |(said, hint)| (said, Some(hint)));
        let advice = advice.or_else(|| cause.downcast_ref::<oci::Error>().and_then(oci::Error::hint));
        hints.extend(advice.map(|advice| format!("\nhint: {advice}")));
        chain.push(said.to_owned());
    }
    eprintln!("error: {}{hints}", printable(&chain.join(": ")));
}

/// What an error says, on one line and without advice.
pub fn told(error: &anyhow::Error) -> String {
    let said = error.chain().map(|cause| cause.to_string().split("\nhint: ").next().unwrap_or_default().to_owned());
    printable(&said.collect::<Vec<_>>().join(": ")).replace('\n', " ")
}

/// Foreign text may be quoted, and none of it commands a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}
