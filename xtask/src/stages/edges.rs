//! Edges: what a promotion has to do, and did, for each tag of each image, and the table that tells a person. Decides nothing about what may be
//! promoted, and asks nobody.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use oci::{Digest, Index, Manifest, Tagged};

use crate::promotion::Class;
use crate::session::told;

/// One image and what has to be done for it; or why it stays.
#[derive(Debug)]
pub struct PlannedPromotion {
    /// Its name.
    pub name: String,
    /// Its index; none: the promotion file does not tell.
    pub digest: Option<Digest>,
    /// Its tags.
    pub edges: Vec<Edge>,
    /// How much of the suite it passed: `full`, `smoke`, or both, on different platforms.
    pub suites: BTreeSet<&'static str>,
    /// What is put under its tags; none: nothing has to be put.
    pub content: Option<Content>,
    /// Why nothing is done for it, or not all.
    pub refusal: Option<anyhow::Error>,
    /// Its record says that it failed its judgement.
    pub failed: bool,
}

/// What an image is, as a registry has it.
#[derive(Debug)]
pub struct Content {
    /// The index.
    pub index: Index,
    /// The manifests that have to be put before it; none where the target has the index, which came there after them.
    pub missing: Vec<Manifest>,
}

/// One tag: what it names, and what it is to name.
#[derive(Debug)]
pub struct Edge {
    /// The tag.
    pub tagged: Tagged,
    /// What the promotion file says that it promises.
    pub class: Class,
    /// What was promoted under it as an immutable tag before.
    pub before: Option<Digest>,
    /// What it names now.
    pub found: Option<Digest>,
    /// What has to be done.
    pub step: Step,
    /// What was done.
    pub fate: Fate,
}

/// What has to be done for a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// What it names is not known.
    Unknown,
    /// It names the image already.
    Nothing,
    /// It names nothing.
    Create,
    /// It names another image and moves.
    Move,
    /// It names another image and stays, or did so before.
    Refuse,
}

/// What was done for a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Nothing so far.
    Open,
    /// It names the image now.
    Done,
    /// It is what the image was refused for.
    Refused,
}

impl PlannedPromotion {
    /// An image of which nothing is known but its name and tags.
    pub fn new(name: String, digest: Option<Digest>, edges: Vec<Edge>) -> Self {
        Self { name, digest, edges, suites: BTreeSet::new(), content: None, refusal: None, failed: false }
    }

    /// Whether something has to be done for it, and may be.
    pub fn has_work(&self) -> bool {
        self.refusal.is_none() && self.is_pending()
    }

    /// Whether a tag has to be put.
    pub fn is_pending(&self) -> bool {
        self.edges.iter().any(Edge::is_pending)
    }
}

impl Edge {
    /// An edge that nobody has looked at.
    pub fn new(tagged: Tagged, class: Class, before: Option<Digest>) -> Self {
        Self { tagged, class, before, found: None, step: Step::Unknown, fate: Fate::Open }
    }

    /// Whether the tag has to be put.
    pub fn is_pending(&self) -> bool {
        matches!(self.step, Step::Create | Step::Move)
    }

    /// Whether it names one image for ever: what was promoted as immutable once stays so, whatever the promotion file says now.
    pub fn is_immutable(&self) -> bool {
        self.class == Class::Immutable || self.before.is_some()
    }

    /// Notes what the tag names, and so what has to be done for it to name `digest`.
    pub fn see(&mut self, found: Option<Digest>, digest: Digest, move_floating: bool) {
        self.found = found;
        self.step = match found {
            _ if self.before.is_some_and(|before| before != digest) => Step::Refuse,
            None => Step::Create,
            Some(found) if found == digest => Step::Nothing,
            Some(_) if move_floating && !self.is_immutable() => Step::Move,
            Some(_) => Step::Refuse,
        };
    }
}

/// One tag that must not move keeps the whole image where it is: half a promotion helps nobody.
pub fn refuse(edges: &mut [Edge], digest: Digest) -> Result<()> {
    let Some(edge) = edges.iter_mut().find(|edge| edge.step == Step::Refuse) else { return Ok(()) };
    edge.fate = Fate::Refused;
    let found = edge.before.filter(|before| *before != digest).or(edge.found);
    let found = found.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
    let (class, hint) = match (edge.before, edge.class) {
        (Some(_), _) => ("it was immutable before", "an immutable tag never moves: promote under a new one"),
        (None, Class::Immutable) => ("it is immutable", "an immutable tag never moves: promote under a new one"),
        (None, Class::Floating) => ("it is floating", "--move-floating moves it"),
    };
    Err(anyhow!("move tag {}: {class}; expected {digest}, found {found}\nhint: {hint}", edge.tagged))
}

/// The plan as a Markdown table, one line for each tag: what is to be done, or what was done where it was carried out.
pub fn table(plan: &[PlannedPromotion]) -> String {
    let mut text = "| image | tag | class | is | becomes | suite | |\n|---|---|---|---|---|---|---|\n".to_owned();
    for image in plan {
        let reason = image.refusal.as_ref().map(|error| told(error).replace('|', "\\|"));
        let digest = image.digest.map_or_else(|| "-".to_owned(), |digest| format!("`{digest}`"));
        let suites = image.suites.iter().copied().collect::<Vec<_>>().join(", ");
        let suites = if suites.is_empty() { "-" } else { &suites };
        // Writing to a string cannot fail.
        for edge in &image.edges {
            let found = match (edge.found, edge.step) {
                (Some(found), _) => format!("`{found}`"),
                (None, Step::Unknown) => "?".to_owned(),
                (None, _) => "-".to_owned(),
            };
            let (tag, class, fate) = (&edge.tagged, edge.class, fate(edge, image, reason.as_deref()));
            let _ = writeln!(text, "| {} | {tag} | {class} | {found} | {digest} | {suites} | {fate} |", image.name);
        }
        if let (true, Some(reason)) = (image.edges.is_empty(), reason) {
            let _ = writeln!(text, "| {} | - | - | - | {digest} | - | refused: {reason} |", image.name);
        }
    }
    text
}

/// The reason stands at the tag that it is about, or at every one where it is about the image.
fn fate(edge: &Edge, image: &PlannedPromotion, reason: Option<&str>) -> String {
    let of_one = image.edges.iter().any(|edge| edge.fate == Fate::Refused);
    let interrupted = image
        .refusal
        .as_ref()
        .and_then(|error| error.downcast_ref())
        .is_some_and(|error| matches!(error, oci::Error::Interrupted));
    match (edge.fate, edge.step, reason) {
        (Fate::Done, Step::Move, _) => "moved".to_owned(),
        (Fate::Done, ..) => "created".to_owned(),
        (Fate::Refused, _, Some(reason)) => format!("refused: {reason}"),
        (_, Step::Nothing, _) => "there already".to_owned(),
        (_, _, Some(reason)) if !of_one && !interrupted => format!("refused: {reason}"),
        (_, _, Some(_)) => "not reached".to_owned(),
        (_, Step::Move, None) => "move".to_owned(),
        (_, _, None) => "create".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use oci::Repository;

    use super::*;

    fn edge(class: Class, before: Option<Digest>) -> Edge {
        let tagged = Repository::parse("r.example/dind").and_then(|at| at.tagged("1")).expect("a tag");
        Edge::new(tagged, class, before)
    }

    #[test]
    fn f53_a_tag_moves_by_its_class_and_by_what_it_was() {
        let (ours, other) = (Digest::of(b"ours"), Digest::of(b"other"));
        for (class, before, found, moving, step) in [
            (Class::Immutable, None, None, false, Step::Create),
            (Class::Immutable, None, Some(ours), false, Step::Nothing),
            (Class::Immutable, None, Some(other), true, Step::Refuse),
            (Class::Floating, None, None, false, Step::Create),
            (Class::Floating, None, Some(other), false, Step::Refuse),
            (Class::Floating, None, Some(other), true, Step::Move),
            (Class::Floating, Some(other), Some(other), true, Step::Refuse),
            // Somebody removed the tag, or moved it.
            (Class::Floating, Some(other), None, true, Step::Refuse),
            (Class::Floating, Some(other), Some(ours), true, Step::Refuse),
            (Class::Immutable, Some(ours), None, false, Step::Create),
            (Class::Floating, Some(ours), Some(other), true, Step::Refuse),
        ] {
            let mut edge = edge(class, before);
            edge.see(found, ours, moving);
            assert_eq!(edge.step, step, "{class} {before:?} {found:?} {moving}");
            assert_eq!(refuse(&mut [edge], ours).is_err(), step == Step::Refuse, "{class} {before:?} {found:?}");
        }
    }

    #[test]
    fn each_tag_has_a_line_with_its_fate() {
        let digest = Digest::of(b"ours");
        let line = |step, fate, refusal: Option<&'static str>| {
            let (mut first, mut second) = (edge(Class::Immutable, None), edge(Class::Floating, None));
            (first.step, second.step, second.fate) = (Step::Nothing, step, fate);
            first.found = Some(digest);
            let mut image = PlannedPromotion::new("dind".to_owned(), Some(digest), vec![first, second]);
            image.suites.insert("smoke");
            image.refusal = refusal.map(|text| anyhow!(text));
            let table = table(&[image]);
            assert!(table.contains("| immutable | `sha256:") && table.contains("| smoke | there already |"), "{table}");
            table.lines().last().and_then(|line| line.rsplit("| smoke | ").next()).map(str::to_owned).expect("a line")
        };
        for (step, fate, refusal, expected) in [
            (Step::Create, Fate::Open, None, "create |"),
            (Step::Move, Fate::Open, None, "move |"),
            (Step::Create, Fate::Done, None, "created |"),
            (Step::Move, Fate::Done, None, "moved |"),
            (Step::Move, Fate::Done, Some("the next one"), "moved |"),
            (Step::Create, Fate::Refused, Some("no | way\nhint: another"), "refused: no \\| way |"),
            (Step::Unknown, Fate::Open, Some("no proof\x1b"), "refused: no proof? |"),
        ] {
            assert_eq!(line(step, fate, refusal), expected);
        }
        let mut unread = PlannedPromotion::new("dind".to_owned(), None, Vec::new());
        unread.refusal = Some(anyhow!("a typo"));
        assert!(table(&[unread]).ends_with("| dind | - | - | - | - | - | refused: a typo |\n"));
    }
}
