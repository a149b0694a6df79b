//! Publishing: an image that was cleared goes into a repository in the fewest requests, children before their index, tags last and read
//! back. What is in the registry is not sent; what is cleared is what is sent, byte for byte.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use oci::{Client, Descriptor, Digest, Family, Index, Reference, Repository, Tagged};

use super::base::Image;
use super::carry::Carrier;
use super::derived::DerivedImage;
use super::evidence;
use super::gate::Cleared;
use crate::args::Registries;
use crate::progress::Stage;
use crate::record::{ImageRecord, Publication};
use crate::session::Session;

/// How long a registry may take until it answers the new digest to a tag.
const TAG_TIMEOUT: Duration = Duration::from_secs(120);
/// How many digits of its digest name what is kept by a tag of its own.
const KEPT_DIGITS: usize = 12;

/// Where images go, and how.
#[derive(Debug)]
pub struct Publisher<'a> {
    /// What reaches the registries.
    pub client: &'a Client,
    /// Where images go.
    pub to: &'a Repository,
    /// How the registries are reached.
    pub registries: &'a Registries,
    /// Tags that name another image move, whatever the definitions say.
    pub move_tags: bool,
    /// A folder for records on their way.
    pub cache: &'a Path,
    /// The run.
    pub session: &'a Session,
}

/// What is known of an image before a registry is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// It may have been published before, from here or from elsewhere.
    Unknown,
    /// It is made of a base that was resolved in this very run: no tag is expected to name it yet.
    New,
}

impl Publisher<'_> {
    /// Publishes an image under its tags, and says so in its record. Error: the image is not the one that was cleared; a tag names another
    /// image and must not move; the registry's.
    pub fn image(&self, record: &mut ImageRecord, image: &DerivedImage, cleared: &Cleared, age: Age) -> Result<()> {
        check(&record.name, image, cleared)?;
        let stage = self.session.progress.stage("publish", &record.name);
        let pending = self.pending(record, &image.index, age)?;
        if !pending.is_empty() {
            let base = record.base.repository()?;
            let carrier = self.carrier(image, base.as_ref(), &stage);
            self.blobs(image, &carrier)?;
            for child in image.platforms.values() {
                let to = Reference::Pinned(self.to.pinned(child.manifest.digest()));
                put(&carrier, &to, child)?;
            }
        }
        self.index(record, &image.index, &pending)?;
        let there = if pending.is_empty() { ", there already" } else { "" };
        stage.done(format!("{}:{}{there}", self.to, record.tags.join(", ")));
        Ok(())
    }

    /// Publishes the manifests alone, each under a tag of its own that keeps it from being collected until an index names it, and says so
    /// in the record. Error: as [`Self::image`].
    pub fn leg(&self, record: &mut ImageRecord, image: &DerivedImage, cleared: &Cleared) -> Result<()> {
        check(&record.name, image, cleared)?;
        let stage = self.session.progress.stage("publish", &record.name);
        let mut tags = Vec::new();
        let mut pending = Vec::new();
        for child in image.platforms.values() {
            let tag = candidate(&child.manifest.digest());
            let tagged = self.to.tagged(&tag)?;
            let found = self.look_at(&tagged)?;
            if found.map(|found| found.digest) != Some(child.manifest.digest()) {
                pending.push((tagged, child));
            }
            tags.push(tag);
        }
        let base = record.base.repository()?;
        let carrier = self.carrier(image, base.as_ref(), &stage);
        if !pending.is_empty() {
            self.blobs(image, &carrier)?;
        }
        for (tagged, child) in pending {
            put(&carrier, &Reference::Tagged(tagged.clone()), child)?;
            self.client.await_tag(&tagged, &child.manifest.digest(), TAG_TIMEOUT)?;
        }
        stage.done(format!("{}:{}", self.to, tags.join(", ")));
        record.published = Some(Publication { repository: self.to.to_string(), tags });
        Ok(())
    }

    /// Publishes an index whose children are in the repository, under tags of which [`Self::pending`] told; before them its record, so that
    /// what a tag names can be proved. The given record says that it is published once all of it is there.
    pub fn index(&self, record: &mut ImageRecord, index: &Index, tags: &[Tagged]) -> Result<()> {
        let publication = Publication { repository: self.to.to_string(), tags: record.tags.clone() };
        let published = ImageRecord { published: Some(publication), ..record.clone() };
        if !tags.is_empty() && record.was_judged() {
            evidence::put(&published, &index.descriptor(), self.to, self.cache, self.client)
                .with_context(|| format!("publish the record of {}", record.name))?;
        }
        for tagged in tags {
            self.client
                .put_manifest(&Reference::Tagged(tagged.clone()), index.media_type(), index.bytes())
                .map_err(|error| refusal(error.into(), index.family()))
                .with_context(|| format!("publish {tagged}"))?;
        }
        for tagged in tags {
            self.client.await_tag(tagged, &index.digest(), TAG_TIMEOUT)?;
        }
        *record = published;
        Ok(())
    }

    /// The tags that do not name this index yet, by one request each; a floating tag is not asked for by a new image. Error: one names
    /// another index and must not move.
    pub fn pending(&self, record: &ImageRecord, index: &Index, age: Age) -> Result<Vec<Tagged>> {
        let may_move = record.floating || self.move_tags;
        let mut pending = Vec::new();
        for tag in &record.tags {
            let tagged = self.to.tagged(tag)?;
            if may_move && age == Age::New {
                pending.push(tagged);
                continue;
            }
            match self.look_at(&tagged)? {
                Some(found) if found.digest == index.digest() => {}
                Some(found) if !may_move => bail!(
                    "publish {tagged}: expected {} or no such tag, found {}\n\
                     hint: a tag that may move is declared by `floating: true` in the image's definition; --move-tags moves it once",
                    index.digest(),
                    found.digest
                ),
                _ => pending.push(tagged),
            }
        }
        Ok(pending)
    }

    /// The tag that keeps an index when its other tags move on, unless it is there: garbage collection may take what no tag names
    /// (distribution's `--delete-untagged`), and what is to be promoted waits. One request. Error: the tag names another index.
    pub fn keeping(&self, index: &Index) -> Result<Option<Tagged>> {
        let tagged = self.to.tagged(&format!("staged-{:.KEPT_DIGITS$}", index.digest().hex()))?;
        match self.look_at(&tagged)? {
            None => Ok(Some(tagged)),
            Some(found) if found.digest == index.digest() => Ok(None),
            Some(found) => {
                bail!("publish {tagged}: expected {} or no such tag, found {}", index.digest(), found.digest)
            }
        }
    }

    fn look_at(&self, tagged: &Tagged) -> Result<Option<Descriptor>> {
        let found = self.client.head(&Reference::Tagged(tagged.clone()));
        found.with_context(|| format!("look at {tagged} before it is published"))
    }

    /// `base` is where the image's base was pulled from.
    fn carrier<'a>(
        &'a self,
        image: &'a DerivedImage,
        base: Option<&'a Repository>,
        stage: &'a Stage<'a>,
    ) -> Carrier<'a> {
        let Self { client, to, registries, .. } = self;
        Carrier { client, registries, from: base, to, layout: &image.layout, stage }
    }

    /// Sends what is ours, and beside that makes the base's layers appear.
    fn blobs(&self, image: &DerivedImage, carrier: &Carrier<'_>) -> Result<()> {
        let (mut own, mut inherited) = (BTreeMap::new(), BTreeMap::new());
        for image in image.platforms.values() {
            own.extend(image.own().map(|blob| (blob.digest, blob.clone())));
            inherited.extend(image.inherited().iter().map(|blob| (blob.digest, blob.clone())));
        }
        let own: Vec<_> = own.into_values().collect();
        let inherited: Vec<_> = inherited.into_values().collect();
        std::thread::scope(|scope| {
            let ours = scope.spawn(|| carrier.send(&own));
            let theirs = carrier.inherit(&inherited);
            match ours.join() {
                Ok(ours) => theirs.and(ours),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
        .with_context(|| format!("send blobs to {}", self.to))
    }
}

fn put(carrier: &Carrier<'_>, to: &Reference, child: &Image) -> Result<()> {
    carrier
        .manifest(to, &child.manifest)
        .map_err(|error| refusal(error, child.manifest.family()))
        .with_context(|| format!("publish manifest {}", child.manifest.digest()))
}

/// The tag that holds a manifest until an index does.
pub fn candidate(manifest: &Digest) -> String {
    format!("cand-{:.KEPT_DIGITS$}", manifest.hex())
}

/// A registry that takes OCI's types only says so by 415 (RFC 9110, section 15.5.16).
fn refusal(error: anyhow::Error, family: Family) -> anyhow::Error {
    match error.downcast_ref() {
        Some(oci::Error::Refused { status: 415, .. }) if family == Family::Docker => {
            anyhow!("{error}: the base is of Docker's media types\nhint: --format oci publishes it under OCI's")
        }
        _ => error,
    }
}

fn check(name: &str, image: &DerivedImage, cleared: &Cleared) -> Result<()> {
    for (platform, child) in &image.platforms {
        let digest = child.manifest.digest();
        ensure!(
            cleared.holds(platform, digest),
            "publish {name}: {platform} {digest} is not what was cleared\nhint: build and judge it again"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f06_a_refusal_of_dockers_types_names_the_way_out() {
        let refused = |status, family| {
            let error =
                oci::Error::Refused { request: "PUT x".to_owned(), expected: vec![201], status, answer: String::new() };
            format!("{:#}", refusal(error.into(), family))
        };
        let hinted = |text: String| text.ends_with("\nhint: --format oci publishes it under OCI's");
        assert!(hinted(refused(415, Family::Docker)));
        assert!(!hinted(refused(415, Family::Oci)) && !hinted(refused(400, Family::Docker)));
    }
}
