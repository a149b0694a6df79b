//! Promotion: images go from one repository to another by digest, and get the tags that the promotion file gives them. What is planned is
//! what is done: the same edges are printed and carried out. Whatever ends it, a tag names an index that is there whole.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use oci::{Client, Descriptor, Digest, Document, Reference, Repository, Tagged};
use suite::Outcome;

use super::carry::{Carrier, named, scratch};
use super::evidence;
use super::gate;
use crate::args::{Allow, Registries};
use crate::progress::Stage;
use crate::promotion::{Class, PromotedImage, Promotion};
use crate::record::ImageRecord;
use crate::session::Session;

/// Images on their way from staging to users.
#[derive(Debug)]
pub struct Promoter<'a> {
    /// What reaches the registries.
    pub client: &'a Client,
    /// Where images are taken from.
    pub source: Repository,
    /// Where they go.
    pub target: Repository,
    /// Records by file; an image that is in none of them is looked up beside itself.
    pub records: Vec<ImageRecord>,
    /// How the registries are reached.
    pub registries: &'a Registries,
    /// Floating tags may move.
    pub move_floating: bool,
    /// A folder for records and blobs on their way.
    pub cache: PathBuf,
    /// The run.
    pub session: &'a Session,
}

/// One image and what has to be done for it; or why it stays.
#[derive(Debug)]
pub struct PlannedPromotion {
    /// Its name.
    pub name: String,
    /// Its index.
    pub digest: Digest,
    /// Its tags.
    pub edges: Vec<Edge>,
    /// Why nothing is done for it.
    pub refusal: Option<anyhow::Error>,
    /// Its record says that it failed its judgement.
    pub failed: bool,
}

/// One tag: what it names, and what it is to name.
#[derive(Debug)]
pub struct Edge {
    /// The tag.
    pub tagged: Tagged,
    /// What it promises.
    pub class: Class,
    /// What it names now.
    pub found: Option<Digest>,
    /// What has to be done.
    pub step: Step,
}

/// What has to be done for a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It names the image already.
    Nothing,
    /// It names nothing.
    Create,
    /// It names another image and moves.
    Move,
    /// It names another image and stays.
    Refuse,
}

impl PlannedPromotion {
    /// Whether something has to be done for it, and may be.
    pub fn has_work(&self) -> bool {
        self.refusal.is_none() && self.pending().next().is_some()
    }

    /// The tags that have to be put.
    fn pending(&self) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(|edge| matches!(edge.step, Step::Create | Step::Move))
    }
}

impl Promoter<'_> {
    /// What has to be done: the gate is asked for every image, the target for every tag. What is wrong with one image is its refusal;
    /// the others go on.
    pub fn plan(&self, promotion: &Promotion) -> Vec<PlannedPromotion> {
        promotion.images.iter().map(|(name, image)| self.plan_image(name, image)).collect()
    }

    /// Carries out a plan, image by image, and notes in it what was refused on the way.
    pub fn apply(&self, plan: &mut [PlannedPromotion]) {
        for image in plan.iter_mut().filter(|image| image.refusal.is_none()) {
            if self.session.interrupt.is_raised() {
                image.refusal = Some(oci::Error::Interrupted.into());
            } else if image.has_work()
                && let Err(error) = self.promote(image)
            {
                image.refusal = Some(error.context(format!("promote {}", image.name)));
            }
        }
    }

    fn plan_image(&self, name: &str, image: &PromotedImage) -> PlannedPromotion {
        let mut planned = PlannedPromotion {
            name: name.to_owned(),
            digest: image.digest,
            edges: Vec::new(),
            refusal: None,
            failed: false,
        };
        let found = self.record(name, image).and_then(|record| {
            planned.failed = record.outcomes().any(|outcome| outcome == Some(Outcome::Failed));
            // The one place where proof is demanded; no exception is allowed here.
            gate::clear(&record, &Allow::default())?;
            for (tag, class) in &image.tags {
                planned.edges.push(self.edge(tag, *class, image.digest)?);
            }
            refuse(&planned.edges, image.digest)
        });
        planned.refusal = found.err().map(|error| error.context(format!("promote {name}")));
        planned
    }

    /// The record of this very digest.
    fn record(&self, name: &str, image: &PromotedImage) -> Result<ImageRecord> {
        let given = self.records.iter().find(|record| record.digest == image.digest).cloned();
        let record = match given {
            Some(record) => record,
            None => evidence::get(&image.digest, &self.source, &self.cache, self.client)?.with_context(|| {
                format!("find the record of {}: expected it in a file or in {}, found none", image.digest, self.source)
            })?,
        };
        if record.name != name {
            bail!("compare the record of {}: expected image {name}, found {}", image.digest, record.name);
        }
        Ok(record)
    }

    fn edge(&self, tag: &str, class: Class, digest: Digest) -> Result<Edge> {
        let tagged = self.target.tagged(tag)?;
        let found = self.client.head(&Reference::Tagged(tagged.clone()))?.map(|found| found.digest);
        let step = match (found, class) {
            (None, _) => Step::Create,
            (Some(found), _) if found == digest => Step::Nothing,
            (Some(_), Class::Floating) if self.move_floating => Step::Move,
            (Some(_), _) => Step::Refuse,
        };
        Ok(Edge { tagged, class, found, step })
    }

    /// Puts the index under its tags. It is tried first: where everything is there, nothing else is asked; where not, the registry names
    /// what it misses, and that is brought, innermost first. So a tag names nothing incomplete in any registry that refuses an index whose
    /// children it lacks, as they do that check manifests at all.
    fn promote(&self, image: &PlannedPromotion) -> Result<()> {
        let stage = self.session.progress.stage("promote", &image.name);
        let Document::Index(index) = self.client.manifest(&self.source, &image.digest)? else {
            bail!("read {} in {}: expected an index, found an image manifest", image.digest, self.source)
        };
        for edge in image.pending() {
            let to = Reference::Tagged(edge.tagged.clone());
            let put = || self.client.put_manifest(&to, index.media_type(), index.bytes());
            match put() {
                Err(oci::Error::BlobsUnknown { digests, .. }) => {
                    self.bring(&named(index.manifests().iter(), &digests), &stage)?;
                    put()?
                }
                put => put?,
            };
        }
        let tags: Vec<_> = image.pending().map(|edge| edge.tagged.to_string()).collect();
        stage.done(format!("{} ({})", tags.join(", "), image.digest));
        Ok(())
    }

    /// Makes manifests, and all that they name, appear in the target.
    fn bring(&self, children: &[Descriptor], stage: &Stage<'_>) -> Result<()> {
        let (_folder, layout) = scratch(&self.cache)?;
        let carrier = Carrier {
            client: self.client,
            registries: self.registries,
            from: Some(&self.source),
            to: &self.target,
            layout: &layout,
            stage,
        };
        for child in children {
            let manifest = self.client.manifest(&self.source, &child.digest)?.into_manifest()?;
            carrier.manifest(&Reference::Pinned(self.target.pinned(child.digest)), &manifest)?;
        }
        Ok(())
    }
}

/// One tag that must not move keeps the whole image where it is: half a promotion helps nobody.
fn refuse(edges: &[Edge], digest: Digest) -> Result<()> {
    let Some(edge) = edges.iter().find(|edge| edge.step == Step::Refuse) else { return Ok(()) };
    let found = edge.found.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
    Err(anyhow!(
        "move tag {}: it is {}; expected {digest}, found {found}\nhint: {}",
        edge.tagged,
        edge.class,
        match edge.class {
            Class::Immutable => "an immutable tag never moves: promote under a new one",
            Class::Floating => "--move-floating moves it",
        }
    ))
}

/// The plan as a Markdown table: one line for each tag.
pub fn table(plan: &[PlannedPromotion]) -> String {
    let mut text = "| image | tag | class | is | becomes | |\n|---|---|---|---|---|---|\n".to_owned();
    for image in plan {
        let fate = |edge: &Edge| match (edge.step, &image.refusal) {
            (Step::Refuse, _) => "refused",
            (_, Some(_)) => "refused with its image",
            (Step::Nothing, None) => "there already",
            (Step::Create, None) => "create",
            (Step::Move, None) => "move",
        };
        // Writing to a string cannot fail.
        for edge in &image.edges {
            let found = edge.found.map_or_else(|| "-".to_owned(), |found| format!("`{found}`"));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {found} | `{}` | {} |",
                image.name,
                edge.tagged,
                edge.class,
                image.digest,
                fate(edge)
            );
        }
        if image.edges.is_empty() {
            let _ = writeln!(text, "| {} | - | - | - | `{}` | refused |", image.name, image.digest);
        }
    }
    text
}
