//! Legs as a repository holds them: whether each is what its record says, before an index names it. Never believes a record about what it
//! can look at, and never publishes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use oci::{Client, Descriptor, ImageConfig, Manifest, Platform, Repository, Silent};

use super::carry::scratch;
use crate::record::{ImageRecord, PlatformRecord};

/// The manifests of an image's legs, by platform, each found in `at` with its configuration and held to its record. `cache` is a folder
/// for what is looked at. Error: the registry lacks one, has an index by its digest, or has another platform, configuration, base
/// or other media types than the record says.
pub fn children(
    image: &ImageRecord,
    at: &Repository,
    client: &Client,
    cache: &Path,
) -> Result<BTreeMap<Platform, Descriptor>> {
    let (_folder, layout) = scratch(cache)?;
    let mut children = BTreeMap::new();
    for (platform, record) in &image.platforms {
        let leg = || format!("merge {}: {platform}", image.name);
        let manifest = manifest(record, at, client).with_context(leg)?;
        check_manifest(&manifest, image, record).with_context(leg)?;
        client
            .blob(at, manifest.config(), &layout, &Silent)
            .with_context(|| format!("look at the configuration of {platform} of {} in {at}", image.name))?;
        check_platform(&ImageConfig::parse(layout.bytes(manifest.config())?)?, platform).with_context(leg)?;
        children.insert(platform.clone(), manifest.descriptor());
    }
    Ok(children)
}

fn manifest(record: &PlatformRecord, at: &Repository, client: &Client) -> Result<Manifest> {
    match client.manifest(at, &record.digest) {
        Ok(found) => Ok(found.into_manifest()?),
        Err(oci::Error::NotFound { .. }) => {
            bail!("expected {} in {at}, found nothing by that digest\nhint: run that leg again", record.digest)
        }
        Err(error) => Err(error).with_context(|| format!("look at {} in {at}", record.digest)),
    }
}

fn check_manifest(manifest: &Manifest, image: &ImageRecord, record: &PlatformRecord) -> Result<()> {
    let config = manifest.config().digest;
    ensure!(config == record.config, "config of {}: expected {}, found {config}", record.digest, record.config);
    // Of a mixed base the index's types and the manifest's differ, and the record says so.
    let (expected, found) = (record.format.unwrap_or(image.format), manifest.family());
    ensure!(found == expected, "media types of {}: expected {expected:?}, found {found:?}", record.digest);
    let found = manifest.annotation("org.opencontainers.image.base.digest").unwrap_or("none");
    let expected = record.base.map_or_else(|| "none".to_owned(), |base| base.to_string());
    ensure!(found == expected, "base of {}: expected {expected}, found {found}", record.digest);
    Ok(())
}

/// A variant counts where both name one: bases exist whose index or configuration leaves it out, and building permits them.
fn check_platform(config: &ImageConfig, expected: &Platform) -> Result<()> {
    let found = config.platform();
    let variants = [&found.variant, &expected.variant];
    let fits = (&found.os, &found.architecture) == (&expected.os, &expected.architecture)
        && (variants[0] == variants[1] || variants.contains(&&None));
    ensure!(fits, "configuration {}: expected platform {expected}, found {found}", config.digest());
    Ok(())
}
