//! Evidence: the record of an image, kept beside the image in its repository. It is a manifest of its own that speaks of the image's index
//! (image-spec `manifest.md`, property `subject`), under a tag by which it is found on registries that list no referrers too.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use oci::{Client, Descriptor, Digest, Document, Error, Family, Manifest, Platform, Reference, Repository, Silent};

use super::carry::scratch;
use crate::record::{ImageRecord, Record};

/// The media type of a record, and so of its manifest.
const RECORD_TYPE: &str = "application/vnd.dind-init.record.v1+json";
/// How many digits of the index's digest name its record.
const RECORD_DIGITS: usize = 12;
/// How often machines may get in each other's way.
const REPLACEMENTS_MAX: u32 = 5;
/// More than this is no record.
const RECORD_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Puts an image's record beside the image: three requests. `index` names the image's index in the repository; `cache` is a folder for
/// what is on its way.
pub fn put(image: &ImageRecord, index: &Descriptor, to: &Repository, cache: &Path, client: &Client) -> Result<()> {
    let record = Record::new(vec![image.clone()]).json()?;
    let (_folder, layout) = scratch(cache)?;
    let blob = layout.put(RECORD_TYPE, record.as_bytes())?;
    client.push_blob(to, &blob, &layout, &Silent)?;
    let mut edit = Manifest::new(Family::Oci, &blob, &[]).edit();
    let manifest = edit.subject(index).finish();
    let tagged = to.tagged(&tag(&index.digest))?;
    client.put_manifest(&Reference::Tagged(tagged), manifest.media_type(), manifest.bytes())?;
    Ok(())
}

/// The record of the image with this index, as the registry itself has it: a mirror, which anybody may keep, proves nothing. None: nobody put
/// one. Two requests; `cache` is a folder for the download. Error: what is found under the tag is no record, or of another image.
pub fn get(index: &Digest, from: &Repository, cache: &Path, client: &Client) -> Result<Option<ImageRecord>> {
    let tagged = from.tagged(&tag(index))?;
    let document = match client.resolve_at_home(&tagged) {
        Err(Error::NotFound { .. }) => return Ok(None),
        found => found?,
    };
    let blob = match &document {
        Document::Manifest(manifest) if manifest.config().media_type == RECORD_TYPE => manifest.config(),
        _ => anyhow::bail!("read {tagged}: expected a record ({RECORD_TYPE}), found something else"),
    };
    ensure!(
        blob.size <= RECORD_BYTES_MAX,
        "read {tagged}: expected a record of at most {RECORD_BYTES_MAX} bytes, found {}",
        blob.size
    );
    let (_folder, layout) = scratch(cache)?;
    client.blob(from, blob, &layout, &Silent)?;
    let text = layout.read(blob, |bytes| -> Result<String> {
        let mut text = String::new();
        bytes.read_to_string(&mut text).with_context(|| format!("read {tagged}"))?;
        Ok(text)
    })?;
    let record = Record::parse(&text, &tagged)?;
    let image = record.images.into_iter().find(|image| image.digest == *index);
    Ok(Some(image.with_context(|| format!("read {tagged}: expected the record of {index}, found another image's"))?))
}

/// Puts one platform's verdict into the record beside an image, where the other platforms' stay as they are found there: their machines may
/// have judged since. It is read back, and done again where another machine's record came in between. `image` has the verdict, and is the
/// record where there is none yet; `index` names its index. Error: the record beside the image is of other manifests.
pub fn replace_verdict(
    image: &ImageRecord,
    (platform, index): (&Platform, &Descriptor),
    at: &Repository,
    cache: &Path,
    client: &Client,
) -> Result<()> {
    let judged = image.platforms.get(platform).with_context(|| format!("expected {platform} in the record"))?;
    for _ in 0..REPLACEMENTS_MAX {
        let mut record = get(&index.digest, at, cache, client)?.unwrap_or_else(|| image.clone());
        let of = record.platforms.get_mut(platform).filter(|of| of.digest == judged.digest);
        let of = of.with_context(|| format!("expected {platform} {} in the record, found another", judged.digest))?;
        (of.verdict, of.unjudged) = (judged.verdict.clone(), judged.unjudged.clone());
        put(&record, index, at, cache, client)?;
        let found = get(&index.digest, at, cache, client)?;
        if found.is_some_and(|found| found.platforms.get(platform).is_some_and(|of| of.verdict == judged.verdict)) {
            return Ok(());
        }
    }
    anyhow::bail!("expected the record to stay, found that others replaced it {REPLACEMENTS_MAX} times")
}

fn tag(index: &Digest) -> String {
    format!("record-{:.RECORD_DIGITS$}", index.hex())
}
