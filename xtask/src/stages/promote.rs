//! Promotion: images go from one repository to another by digest, and get the tags that the promotion file gives them. What is planned is
//! what is done: the plan fetches what is then put. Whatever ends it, a tag names an index that is there whole: children come first.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use oci::{Client, Digest, Document, Index, Manifest, Reference, Repository};
use suite::{Outcome, Selection};

use super::carry::{Carrier, scratch};
use super::edges::{Content, Edge, Fate, PlannedPromotion, refuse};
use super::evidence;
use super::gate::{self, Cleared};
use crate::args::Registries;
use crate::progress::Stage;
use crate::promotion::{Class, PromotedImage};
use crate::record::ImageRecord;
use crate::session::Session;

/// How long a registry may take until it answers to a tag that it was given.
const TAG_TIMEOUT: Duration = Duration::from_secs(120);

/// Images on their way from staging to users.
#[derive(Debug)]
pub struct Promoter<'a> {
    /// What reaches the registries, and none of their mirrors: what is believed is what they have themselves.
    pub client: &'a Client,
    /// Where images are taken from.
    pub source: Repository,
    /// Where they go.
    pub target: Repository,
    /// Records by file; an image that is in none of them is looked up beside itself.
    pub records: Vec<ImageRecord>,
    /// What was promoted under immutable tags before, by their full names.
    pub immutable: BTreeMap<String, Digest>,
    /// How the registries are reached.
    pub registries: &'a Registries,
    /// Floating tags may move.
    pub move_floating: bool,
    /// Images may lack platforms that their definitions list.
    pub allow_missing_platforms: bool,
    /// A folder for records and blobs on their way.
    pub cache: PathBuf,
    /// The run.
    pub session: &'a Session,
}

impl Promoter<'_> {
    /// What has to be done: the gate is asked for every image, the target for every tag, and what has to be put is fetched. What is wrong
    /// with one image is its refusal; the others go on.
    pub fn plan(&self, images: BTreeMap<String, Result<PromotedImage>>) -> Vec<PlannedPromotion> {
        images.into_iter().map(|(name, image)| self.plan_image(name, image)).collect()
    }

    /// Carries out a plan, image by image, and notes in it what was done, and what was refused on the way.
    pub fn apply(&self, plan: &mut [PlannedPromotion]) {
        for image in plan.iter_mut().filter(|image| image.has_work()) {
            if self.session.interrupt.is_raised() {
                image.refusal = Some(oci::Error::Interrupted.into());
            } else if let Err(error) = self.promote(image) {
                image.refusal = Some(error.context(format!("promote {}", image.name)));
            }
        }
    }

    fn plan_image(&self, name: String, image: Result<PromotedImage>) -> PlannedPromotion {
        let planned = image.and_then(|image| {
            let edge = |(tag, class): (&String, &Class)| {
                let tagged = self.target.tagged(tag)?;
                let before = self.immutable.get(&tagged.to_string()).copied();
                Ok(Edge::new(tagged, *class, before))
            };
            let edges = image.tags.iter().map(edge).collect::<Result<_>>()?;
            Ok((image.digest, PlannedPromotion::new(name.clone(), Some(image.digest), edges)))
        });
        let (mut planned, refused) = match planned {
            Ok((digest, mut planned)) => {
                let looked = self.look(&mut planned, digest);
                (planned, looked.err())
            }
            Err(error) => (PlannedPromotion::new(name, None, Vec::new()), Some(error)),
        };
        planned.refusal = refused.map(|error| error.context(format!("promote {}", planned.name)));
        planned
    }

    /// Looks at all that the plan for an image needs. Error: why it is refused.
    fn look(&self, planned: &mut PlannedPromotion, digest: Digest) -> Result<()> {
        let record = self.record(&planned.name, digest)?;
        planned.failed = record.outcomes().any(|outcome| outcome == Some(Outcome::Failed));
        let verdicts = record.platforms.values().filter_map(|platform| platform.verdict.as_ref());
        planned.suites = verdicts.map(|verdict| suite(&verdict.selection)).collect();
        // The one place where proof is demanded.
        let cleared = gate::prove(&record, self.allow_missing_platforms)?;
        for edge in &mut planned.edges {
            match self.client.head(&Reference::Tagged(edge.tagged.clone())) {
                Ok(found) => edge.see(found.map(|found| found.digest), digest, self.move_floating),
                Err(error) => {
                    edge.fate = Fate::Refused;
                    return Err(error).with_context(|| format!("look at {}", edge.tagged));
                }
            }
        }
        refuse(&mut planned.edges, digest)?;
        if planned.is_pending() {
            planned.content = Some(self.content(digest, &record, &cleared)?);
        }
        Ok(())
    }

    /// The record of this very digest.
    fn record(&self, name: &str, digest: Digest) -> Result<ImageRecord> {
        let given: Vec<_> = self.records.iter().filter(|record| record.digest == digest).collect();
        let record = match given.split_first() {
            Some((first, others)) => {
                let differs = others.iter().any(|other| !first.outcomes().eq(other.outcomes()));
                ensure!(
                    !differs,
                    "find the record of {digest}: expected records that agree, found that the records differ in its outcome\n\
                     hint: name by --record what was judged last, alone"
                );
                (*first).clone()
            }
            None => evidence::get(&digest, &self.source, &self.cache, self.client)?.with_context(|| {
                format!(
                    "find the record of {digest}: expected it in a file or in {}, found none\n\
                     hint: --record FILE names it; publishing what was judged puts it beside the image",
                    self.source
                )
            })?,
        };
        ensure!(record.name == name, "compare the record of {digest}: expected image {name}, found {}", record.name);
        Ok(record)
    }

    /// The index, held to its record, and, where the target lacks it, the manifests that it names.
    fn content(&self, digest: Digest, record: &ImageRecord, cleared: &Cleared) -> Result<Content> {
        let (document, there) = match self.client.manifest(&self.target, &digest) {
            Ok(document) => (document, true),
            Err(oci::Error::NotFound { .. }) => (self.staged("index", digest)?, false),
            Err(error) => return Err(error).with_context(|| format!("look for {digest} in {}", self.target)),
        };
        let Document::Index(index) = document else {
            bail!("read {digest}: expected an index, found an image manifest\nhint: a record's `digest` is the index")
        };
        compare(&index, record, cleared)?;
        let missing = if there { Vec::new() } else { self.children(&index)? };
        Ok(Content { index, missing })
    }

    fn children(&self, index: &Index) -> Result<Vec<Manifest>> {
        let child = |child: &oci::Descriptor| Ok(self.staged("manifest", child.digest)?.into_manifest()?);
        index.manifests().iter().map(child).collect()
    }

    fn staged(&self, what: &str, digest: Digest) -> Result<Document> {
        self.client.manifest(&self.source, &digest).map_err(|error| match error {
            oci::Error::NotFound { .. } => anyhow!(
                "find {what} {digest} in {}: {error}\nhint: it was never there, or was collected: publish it again",
                self.source
            ),
            error => anyhow::Error::from(error).context(format!("find {what} {digest} in {}", self.source)),
        })
    }

    /// Puts what is missing, and then the index under its tags.
    fn promote(&self, image: &mut PlannedPromotion) -> Result<()> {
        let stage = self.session.progress.stage("promote", &image.name);
        let content = image.content.take().context("expected a planned image, found none of its manifests")?;
        let mut brought = !content.missing.is_empty();
        self.bring(&content.missing, &stage)?;
        for edge in image.edges.iter_mut().filter(|edge| edge.is_pending()) {
            if let Err(error) = self.put(edge, &content.index, &mut brought, &stage) {
                edge.fate = Fate::Refused;
                return Err(error);
            }
            edge.fate = Fate::Done;
        }
        let done = image.edges.iter().filter(|edge| edge.fate == Fate::Done);
        let tags: Vec<_> = done.map(|edge| edge.tagged.to_string()).collect();
        stage.done(format!("{} ({})", tags.join(", "), content.index.digest()));
        self.session.progress.note(
            "left",
            &self.source,
            "the record, and whatever else speaks of the image, stays there",
        );
        Ok(())
    }

    /// Puts the index under one tag. `brought`: its children were put by this run.
    fn put(&self, edge: &Edge, index: &Index, brought: &mut bool, stage: &Stage<'_>) -> Result<()> {
        let to = Reference::Tagged(edge.tagged.clone());
        if *brought && edge.is_immutable() {
            // That took its time, in which another promotion may have come first.
            let found = self.client.head(&to)?.map(|found| found.digest);
            ensure!(found.is_none_or(|found| found == index.digest()), taken(edge, index, found));
        }
        let put = || self.client.put_manifest(&to, index.media_type(), index.bytes());
        match put() {
            // The index was there and its children are not: registries say so in various words.
            Err(
                oci::Error::BlobsUnknown { .. } | oci::Error::NotFound { .. } | oci::Error::Refused { status: 400, .. },
            ) if !*brought => {
                *brought = true;
                self.bring(&self.children(index)?, stage)?;
                put()?
            }
            put => put?,
        };
        if edge.is_immutable() { self.read_back(edge, index) } else { Ok(()) }
    }

    /// No registry must refuse to move a tag, so that of two promotions at once both may put it. Who reads back what the other one put has
    /// lost; nothing else tells them.
    fn read_back(&self, edge: &Edge, index: &Index) -> Result<()> {
        match self.client.head(&Reference::Tagged(edge.tagged.clone()))? {
            Some(found) if found.digest == index.digest() => Ok(()),
            Some(found) => bail!(taken(edge, index, Some(found.digest))),
            None => Ok(self.client.await_tag(&edge.tagged, &index.digest(), TAG_TIMEOUT)?),
        }
    }

    /// Makes manifests, and the blobs that they name, appear in the target.
    fn bring(&self, manifests: &[Manifest], stage: &Stage<'_>) -> Result<()> {
        if manifests.is_empty() {
            return Ok(());
        }
        let (_folder, layout) = scratch(&self.cache)?;
        let carrier = Carrier {
            client: self.client,
            registries: self.registries,
            from: Some(&self.source),
            to: &self.target,
            layout: &layout,
            stage,
        };
        for manifest in manifests {
            carrier.manifest(&Reference::Pinned(self.target.pinned(manifest.digest())), manifest)?;
        }
        Ok(())
    }
}

/// Holds an index to its record, both ways: it names what was cleared, all of it, and nothing else.
fn compare(index: &Index, record: &ImageRecord, cleared: &Cleared) -> Result<()> {
    let digest = index.digest();
    for entry in index.manifests() {
        let holds = entry.platform.as_ref().is_some_and(|platform| cleared.holds(platform, entry.digest));
        let platform = entry.platform.as_ref().map_or_else(|| "no platform".to_owned(), ToString::to_string);
        ensure!(
            holds,
            "compare index {digest} with its record: expected what the record proves, found {platform} {}",
            entry.digest
        );
    }
    for (platform, child) in &record.platforms {
        ensure!(
            index.manifests().iter().any(|entry| entry.platform.as_ref() == Some(platform)),
            "compare index {digest} with its record: expected {platform} {}, found nothing",
            child.digest
        );
    }
    Ok(())
}

/// Somebody else has the tag.
fn taken(edge: &Edge, index: &Index, found: Option<Digest>) -> String {
    let found = found.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
    format!(
        "read back tag {}: expected {}, found {found}\n\
         hint: another promotion got it at the same time; an immutable tag never moves: promote under a new one",
        edge.tagged,
        index.digest()
    )
}

fn suite(selection: &Selection) -> &'static str {
    match selection {
        Selection::Full => "full",
        Selection::Smoke => "smoke",
        Selection::Only(_) => "picked",
    }
}
