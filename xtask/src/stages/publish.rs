//! Publishing: an image that was cleared goes into a repository in the fewest requests, children before their index, tags last and read
//! back. What is in the registry is not sent; what is cleared is what is sent, byte for byte.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use oci::{Client, Descriptor, Digest, Family, Index, Layout, Reference, Repository, Tagged};

use super::base::Image;
use super::derived::DerivedImage;
use super::evidence;
use super::gate::Cleared;
use crate::args::Registries;
use crate::progress::Stage;
use crate::record::{ImageRecord, Publication};
use crate::session::Session;

/// How long a registry may take until it answers the new digest to a tag.
const TAG_TIMEOUT: Duration = Duration::from_secs(120);
/// How many digits of its digest name a manifest that waits for its index.
const CANDIDATE_DIGITS: usize = 12;

/// Where images go, and how.
#[derive(Debug)]
pub struct Publisher<'a> {
    client: &'a Client,
    to: &'a Repository,
    registries: &'a Registries,
    move_tags: bool,
    cache: &'a Path,
    session: &'a Session,
}

/// What is known of an image before a registry is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// It may have been published before, from here or from elsewhere.
    Unknown,
    /// It is made of a base that was resolved in this very run: no tag is expected to name it yet.
    New,
}

impl<'a> Publisher<'a> {
    /// A publisher into `to`. `move_tags`: tags that name another image move, whatever the definitions say.
    pub fn new(
        client: &'a Client,
        to: &'a Repository,
        registries: &'a Registries,
        move_tags: bool,
        cache: &'a Path,
        session: &'a Session,
    ) -> Self {
        Self { client, to, registries, move_tags, cache, session }
    }

    /// Publishes an image under its tags, and says so in its record. `base` is where its base was pulled from. Error: the image is not the
    /// one that was cleared; a tag names another image and must not move; the registry's.
    pub fn image(
        &self,
        record: &mut ImageRecord,
        image: &DerivedImage,
        cleared: &Cleared,
        age: Age,
        base: Option<&Repository>,
    ) -> Result<()> {
        check(&record.name, image, cleared)?;
        let stage = self.session.progress.stage("publish", &record.name);
        let pending = self.pending(record, &image.index, age)?;
        if !pending.is_empty() {
            let sending = Sending { publisher: self, image, base, stage: &stage };
            sending.blobs()?;
            for child in image.platforms.values() {
                let to = Reference::Pinned(self.to.pinned(child.manifest.digest()));
                sending.manifest(&to, child)?;
            }
        }
        self.index(record, &image.index, &pending)?;
        let there = if pending.is_empty() { ", there already" } else { "" };
        stage.done(format!("{}:{}{there}", self.to, record.tags.join(", ")));
        Ok(())
    }

    /// Publishes the manifests alone, each under a tag of its own that keeps it from being collected until an index names it.
    pub fn leg(
        &self,
        record: &mut ImageRecord,
        image: &DerivedImage,
        cleared: &Cleared,
        base: Option<&Repository>,
    ) -> Result<()> {
        check(&record.name, image, cleared)?;
        let stage = self.session.progress.stage("publish", &record.name);
        let sending = Sending { publisher: self, image, base, stage: &stage };
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
        if !pending.is_empty() {
            sending.blobs()?;
        }
        for (tagged, child) in pending {
            sending.manifest(&Reference::Tagged(tagged.clone()), child)?;
            self.client.await_tag(&tagged, &child.manifest.digest(), TAG_TIMEOUT)?;
        }
        stage.done(format!("{}:{}", self.to, tags.join(", ")));
        record.published = Some(Publication { repository: self.to.to_string(), tags });
        Ok(())
    }

    /// Publishes an index whose children are in the repository, under tags of which [`Self::pending`] told; before them its record, so that
    /// what a tag names can be proved.
    pub fn index(&self, record: &mut ImageRecord, index: &Index, tags: &[Tagged]) -> Result<()> {
        record.published = Some(Publication { repository: self.to.to_string(), tags: record.tags.clone() });
        if !tags.is_empty() && record.was_judged() {
            let layout = Layout::open_or_create(&self.cache.join("records"))?;
            evidence::put(record, &index.descriptor(), self.to, &layout, self.client)
                .with_context(|| format!("publish the record of {}", record.name))?;
        }
        for tagged in tags {
            self.client
                .put_manifest(&Reference::Tagged(tagged.clone()), index.media_type(), index.bytes())
                .map_err(|error| refusal(error, index.family()))
                .with_context(|| format!("publish {tagged}"))?;
        }
        for tagged in tags {
            self.client.await_tag(tagged, &index.digest(), TAG_TIMEOUT)?;
        }
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

    fn look_at(&self, tagged: &Tagged) -> Result<Option<Descriptor>> {
        let found = self.client.head(&Reference::Tagged(tagged.clone()));
        found.with_context(|| format!("look at {tagged} before it is published"))
    }
}

/// The tag that holds a manifest until an index does.
pub fn candidate(manifest: &Digest) -> String {
    format!("cand-{:.CANDIDATE_DIGITS$}", manifest.hex())
}

/// A registry that takes OCI's types only says so by 415 (RFC 9110, section 15.5.16).
fn refusal(error: oci::Error, family: Family) -> anyhow::Error {
    match &error {
        oci::Error::Refused { status: 415, .. } if family == Family::Docker => {
            anyhow!("{error}: the base is of Docker's media types\nhint: --format oci publishes it under OCI's")
        }
        _ => error.into(),
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

/// One image on its way.
struct Sending<'a> {
    publisher: &'a Publisher<'a>,
    image: &'a DerivedImage,
    base: Option<&'a Repository>,
    stage: &'a Stage<'a>,
}

impl Sending<'_> {
    /// Sends what is ours, and beside that makes the base's layers appear: they are there already in the base's own repository, are
    /// mounted into another one of its registry, and travel to any other registry as far as they are not there.
    fn blobs(&self) -> Result<()> {
        let Publisher { client, to, registries, .. } = self.publisher;
        let (mut own, mut inherited) = (BTreeMap::new(), BTreeMap::new());
        for image in self.image.platforms.values() {
            own.extend(image.own().map(|blob| (blob.digest, blob.clone())));
            inherited.extend(image.inherited().iter().map(|blob| (blob.digest, blob.clone())));
        }
        let own: Vec<_> = own.into_values().collect();
        let inherited: Vec<_> = inherited.into_values().collect();
        let beside = self.base.and_then(|base| registries.beside(base, to));
        std::thread::scope(|scope| {
            let ours = scope.spawn(|| client.push_blobs(to, &own, self.layout(), self.stage));
            let theirs = match &beside {
                Some(place) if place == *to => Ok(()),
                Some(place) => self.mount(place, &inherited),
                None => client.lacking(to, &inherited).map_err(Into::into).and_then(|missing| self.send(&missing)),
            };
            match ours.join() {
                Ok(ours) => theirs.and(ours.map_err(Into::into)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
        .with_context(|| format!("send blobs to {to}"))
    }

    fn mount(&self, from: &Repository, blobs: &[Descriptor]) -> Result<()> {
        let Publisher { client, to, .. } = self.publisher;
        let uploads = client.mount_all(from, to, blobs)?;
        let refused: Vec<_> = uploads.iter().map(|upload| upload.blob().clone()).collect();
        self.bring(&refused)?;
        Ok(client.upload_all(uploads, self.layout(), self.stage)?)
    }

    fn send(&self, blobs: &[Descriptor]) -> Result<()> {
        self.bring(blobs)?;
        Ok(self.publisher.client.push_blobs(self.publisher.to, blobs, self.layout(), self.stage)?)
    }

    /// Fetches blobs that the layout lacks from the base.
    fn bring(&self, blobs: &[Descriptor]) -> Result<()> {
        let missing: Vec<_> = blobs.iter().filter(|blob| !self.layout().has(blob)).cloned().collect();
        let Some(first) = missing.first() else { return Ok(()) };
        let base = self
            .base
            .with_context(|| format!("find layer {}: it is not in {}", first.digest, self.layout().dir().display()))?;
        Ok(self.publisher.client.blobs(base, &missing, self.layout(), self.stage)?)
    }

    /// Puts a manifest. Where the registry then misses blobs (a base that came through a cache, a repository that was cleaned up), they
    /// are sent and it is put once more.
    fn manifest(&self, to: &Reference, child: &Image) -> Result<()> {
        let put = || self.publisher.client.put_manifest(to, child.manifest.media_type(), child.manifest.bytes());
        match put() {
            Err(oci::Error::BlobsUnknown { digests, .. }) => {
                let missing: Vec<_> = child.blobs().filter(|blob| digests.contains(&blob.digest)).cloned().collect();
                self.send(&missing)?;
                put()
            }
            result => result,
        }
        .map(drop)
        .map_err(|error| refusal(error, child.manifest.family()))
        .with_context(|| format!("publish manifest {}", child.manifest.digest()))
    }

    fn layout(&self) -> &Layout {
        &self.image.layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f06_a_refusal_of_dockers_types_names_the_way_out() {
        let refused = |status, family| {
            let error =
                oci::Error::Refused { request: "PUT x".to_owned(), expected: vec![201], status, answer: String::new() };
            format!("{:#}", refusal(error, family))
        };
        let hinted = |text: String| text.ends_with("\nhint: --format oci publishes it under OCI's");
        assert!(hinted(refused(415, Family::Docker)));
        assert!(!hinted(refused(415, Family::Oci)) && !hinted(refused(400, Family::Docker)));
    }
}
