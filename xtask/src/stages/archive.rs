//! `--docker-archive`: one platform of an image as the archive that `docker load` reads. It is the image layout in a tar, with Docker's
//! own `manifest.json` beside its index, because dockerd before 25 knows no layout (it then fails at a file `blobs/json`).
//! Changes no blob, and holds none in memory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use oci::{Descriptor, Digest, Family, Index, Interrupt, Platform, Tagged, Timestamp};
use serde::Serialize;
use suite::Outcome;
use tar::{EntryType, Header};

use super::base::Image;
use super::derived::DerivedImage;
use super::judge::Judgement;
use crate::plan::PlannedImage;
use crate::progress::size;
use crate::session::Session;
use crate::shared::write_whole_from;
use crate::spec::ImageSpec;

/// By this annotation of an index entry, containerd and dockerd on its image store find the full name of what they import.
const IMAGE_NAME: &str = "io.containerd.image.name";

/// The archive that was asked for: decided before any work.
#[derive(Debug, Clone, Serialize)]
pub struct DockerArchive {
    /// Where it is written.
    pub file: PathBuf,
    /// The platform that it holds: Docker's format has room for one.
    pub platform: Platform,
}

/// One image in Docker's `manifest.json` (moby `image/spec/spec.md`, "Combined Image JSON + Filesystem Changeset Format"); the paths are
/// those of blobs in the archive.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Loadable {
    config: String,
    repo_tags: Vec<String>,
    layers: Vec<String>,
}

impl DockerArchive {
    /// Decides what goes into `file`: the host's platform where it is among those that are built, else the only one. Error: several
    /// images are built, or several platforms and the host's is not among them.
    pub fn plan(file: PathBuf, images: &[PlannedImage], host: &Platform) -> Result<Self> {
        let [image] = images else {
            let names: Vec<_> = images.iter().map(|image| image.spec.name.as_str()).collect();
            bail!(
                "plan --docker-archive {}: expected one image, found {}\nhint: name one of {}",
                file.display(),
                images.len(),
                names.join(", ")
            );
        };
        let own = image.platforms.iter().find(|platform| platform.is_same_as(host));
        let platform = match (own, image.platforms.as_slice()) {
            (Some(own), _) => own,
            (None, [only]) => only,
            (None, several) => {
                let names: Vec<_> = several.iter().map(ToString::to_string).collect();
                bail!(
                    "plan --docker-archive {}: expected the host's platform {host} or one platform alone, found {}\n\
                     hint: choose one with --platform",
                    file.display(),
                    names.join(", ")
                );
            }
        };
        Ok(Self { platform: platform.clone(), file })
    }

    /// Asks, before the work begins, whether the file can be put in its place. Error: something else than a file is there, or its folder
    /// is missing.
    pub fn check_place(&self) -> Result<()> {
        let place = self.file.display();
        if let Ok(found) = fs::metadata(&self.file) {
            ensure!(found.is_file(), "write docker archive {place}: expected a regular file or none there");
        }
        let parent = self.file.parent().unwrap_or(Path::new("/"));
        ensure!(parent.is_dir(), "write docker archive {place}: expected a folder {}, found none", parent.display());
        Ok(())
    }
}

/// Writes the archive, unless the suite found that the image fails. Error: as [`write`].
pub fn stage(
    archive: &DockerArchive,
    spec: &ImageSpec,
    derived: &DerivedImage,
    judgements: &BTreeMap<Platform, Judgement>,
    session: &Session,
) -> Result<()> {
    let DockerArchive { file, platform } = archive;
    if let Some(Judgement::Judged(verdict)) = judgements.get(platform)
        && verdict.outcome == Outcome::Failed
    {
        session.progress.note("archive", &spec.name, format!("not written to {}: the image failed", file.display()));
        return Ok(());
    }
    let stage = session.progress.stage("archive", &spec.name);
    let image = derived.platforms.get(platform).context("archive a platform that was not built")?;
    write(file, spec, platform, image, &session.interrupt)?;
    let bytes = fs::metadata(file).with_context(|| format!("look at {}", file.display()))?.len();
    stage.done(format!("{platform} for docker load, {}: {}", size(bytes), file.display()));
    Ok(())
}

/// Writes `image` to `file`, whole or not at all. The same image gives the same bytes: entries sorted by name, each header fixed, their
/// time the image's own. Error: a blob is missing or damaged, a layer is of a kind that `docker load` of 20.10 cannot read, or the disk
/// is full.
pub fn write(file: &Path, spec: &ImageSpec, platform: &Platform, image: &Image, interrupt: &Interrupt) -> Result<()> {
    let entries = entries(spec, platform, image)?;
    let time = image.created()?;
    let written = write_whole_from(file, |file| {
        let mut tar = tar::Builder::new(BufWriter::new(file));
        for (name, entry) in &entries {
            interrupt.check()?;
            match entry {
                Entry::Bytes(bytes) => tar.append(&header(name, bytes.len() as u64, time)?, bytes.as_slice())?,
                Entry::Layer(blob) => {
                    let header = header(name, blob.size, time)?;
                    image.layout.read(blob, |reader| Ok::<_, anyhow::Error>(tar.append(&header, reader)?))?;
                }
            }
        }
        tar.into_inner()?.flush()?;
        Ok(())
    });
    written.with_context(|| format!("write docker archive {}", file.display()))
}

/// What an entry of the archive holds.
enum Entry {
    /// A document.
    Bytes(Vec<u8>),
    /// A layer's blob, streamed from the layout.
    Layer(Descriptor),
}

/// The archive's entries by name. A layer that the image has twice is there once.
fn entries(spec: &ImageSpec, platform: &Platform, image: &Image) -> Result<BTreeMap<String, Entry>> {
    let manifest = image.manifest.to_oci();
    let mut entries = BTreeMap::from([
        ("oci-layout".to_owned(), Entry::Bytes(oci::layout::OCI_LAYOUT.to_vec())),
        (blob(&manifest.digest()), Entry::Bytes(manifest.bytes().to_vec())),
        (blob(&manifest.config().digest), Entry::Bytes(image.config.bytes().to_vec())),
    ]);
    let mut loadable = Loadable { config: blob(&manifest.config().digest), repo_tags: Vec::new(), layers: Vec::new() };
    for layer in manifest.layers() {
        ensure!(
            layer.media_type.ends_with(".tar") || layer.media_type.ends_with(".tar+gzip"),
            "archive layer {}: expected a tar or its gzip (docker before 23 loads no other), found {}",
            layer.digest,
            layer.media_type
        );
        loadable.layers.push(blob(&layer.digest));
        entries.insert(blob(&layer.digest), Entry::Layer(layer.clone()));
    }
    let mut named = Vec::new();
    for tag in &spec.tags {
        let short = format!("{}:{tag}", spec.name);
        let mut entry = manifest.descriptor().with_platform(platform.clone()).with_ref_name(tag);
        entry.annotations.insert(IMAGE_NAME.to_owned(), Tagged::parse(&short)?.to_string());
        named.push(entry);
        loadable.repo_tags.push(short);
    }
    let index = Index::new(Family::Oci, &named)?;
    entries.insert("index.json".to_owned(), Entry::Bytes(index.bytes().to_vec()));
    let loadable = serde_json::to_vec(&[loadable]).context("print manifest.json")?;
    entries.insert("manifest.json".to_owned(), Entry::Bytes(loadable));
    Ok(entries)
}

fn blob(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn header(name: &str, size: u64, time: Timestamp) -> Result<Header> {
    let mut header = Header::new_ustar();
    header.set_path(name).with_context(|| format!("name archive entry {name}"))?;
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(size);
    header.set_mtime(time.epoch());
    header.set_cksum();
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::read_definitions;

    /// The repository's images, all for these platforms.
    fn images(platforms: &[&str]) -> Vec<PlannedImage> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images");
        let platforms: Vec<_> = platforms.iter().map(|name| Platform::parse(name).expect("a platform")).collect();
        let specs = read_definitions(&root).expect("read the definitions").into_iter();
        let plan = |spec: ImageSpec| PlannedImage {
            base: spec.base().expect("a base"),
            locked: None,
            platforms: platforms.clone(),
            spec,
        };
        specs.map(plan).collect()
    }

    #[test]
    fn the_hosts_platform_is_archived_or_the_only_one() {
        let host = Platform::parse("linux/arm64").expect("a platform");
        for (built, expected) in [
            (&["linux/amd64", "linux/arm64/v8"][..], Ok("linux/arm64/v8")),
            (&["linux/amd64"], Ok("linux/amd64")),
            (
                &["linux/amd64", "linux/riscv64"],
                Err("found linux/amd64, linux/riscv64\nhint: choose one with --platform"),
            ),
        ] {
            let planned = DockerArchive::plan("/a.tar".into(), &images(built)[..1], &host);
            match (planned, expected) {
                (Ok(archive), Ok(platform)) => assert_eq!(archive.platform.to_string(), platform),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
                (planned, _) => panic!("{built:?}: expected {expected:?}, found {planned:?}"),
            }
        }
        let error = DockerArchive::plan("/a.tar".into(), &images(&["linux/arm64"]), &host).expect_err("three images");
        assert!(
            error.to_string().contains("expected one image, found 3\nhint: name one of containerd, dind, init"),
            "{error}"
        );
    }

    #[test]
    fn a_place_that_no_file_can_take_is_refused() {
        let folder = tempfile::tempdir().expect("make a folder");
        let platform = Platform::parse("linux/amd64").expect("a platform");
        for (file, expected) in [
            (folder.path().to_owned(), Some("expected a regular file")),
            ("/dev/null".into(), Some("expected a regular file")),
            (folder.path().join("no/a.tar"), Some("expected a folder")),
            (folder.path().join("a.tar"), None),
        ] {
            let checked = DockerArchive { file, platform: platform.clone() }.check_place();
            let found = checked.err().map(|error| error.to_string());
            assert!(
                found.as_deref().unwrap_or_default().contains(expected.unwrap_or_default())
                    && found.is_some() == expected.is_some(),
                "expected {expected:?}, found {found:?}"
            );
        }
    }
}
