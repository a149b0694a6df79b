//! `merge`: the legs that several machines judged and pushed by digest become one image. The registry is all that the machines share;
//! what they say of their legs is checked against each other and against the registry.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use oci::Repository;

use super::Outcome;
use crate::args;
use crate::plan::{cache, out_folder};
use crate::record::{ImageRecord, Record, SourceRecord};
use crate::session::{Session, print};
use crate::stages::publish::{Age, Publisher};
use crate::stages::{derived, gate, legs};

/// Merges the legs and publishes the indexes; writes the merged record. Nothing is published before everything was checked.
pub(super) fn run(args: &args::Merge, session: &Session) -> Result<Outcome> {
    let paths: Vec<_> = args.records.iter().map(|path| session.facts.cwd.join(path)).collect();
    let (mut images, repository) = merged(&paths)?;
    gate::one_image_a_tag(images.iter().map(|image| (image.name.as_str(), image.tags.as_slice())))?;
    // A mirror may have what the registry lost, and what is merged must be in the registry itself.
    let registries = args::Registries { mirror: Vec::new(), ..args.registries.clone() };
    let client = registries.client(session)?;
    let cache = cache(&session.facts);
    let publisher = Publisher {
        client: &client,
        to: &repository,
        registries: &registries,
        move_tags: args.allow.move_tags,
        cache: &cache,
        session,
    };
    let mut indexes = Vec::new();
    for image in &mut images {
        gate::clear(image, &args.allow)?;
        if !args.allow_missing_platforms {
            whole(image)?;
        }
        let children = legs::children(image, &repository, &client, &cache)?;
        let index = derived::index(image.format, &children, image.base.identity())?;
        image.digest = index.digest();
        image.layout = None;
        // First, so that no moment comes in which the others keep it and this one does not.
        let mut pending = Vec::from_iter(publisher.keeping(&index)?);
        pending.extend(publisher.pending(image, &index, Age::Unknown)?);
        indexes.push((index, pending));
    }
    let out = out_folder(args.out.as_deref(), &session.facts);
    std::fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    Record::check_place(&out)?;
    let mut published = String::new();
    for (image, (index, pending)) in images.iter_mut().zip(&indexes) {
        let stage = session.progress.stage("merge", &image.name);
        publisher.index(image, index, pending)?;
        published.push_str(&format!("{repository}@{}\n", image.digest));
        let platforms: Vec<_> = image.platforms.keys().map(ToString::to_string).collect();
        let there = if pending.is_empty() { ", there already" } else { "" };
        stage.done(format!("{repository}:{} ({}){there}", image.tags.join(", "), platforms.join(", ")));
    }
    let record = Record::new(images);
    record.write(&out)?;
    print(&match (args.json, args.markdown) {
        (true, _) => record.json()?,
        (_, true) => record.markdown(),
        _ => published,
    })?;
    Ok(Outcome::Done)
}

/// The legs' records as one, and the repository that holds all of them. Error: what two legs say of one image differs, or a leg was
/// pushed elsewhere or not at all.
fn merged(paths: &[PathBuf]) -> Result<(Vec<ImageRecord>, Repository)> {
    let mut images: BTreeMap<String, (ImageRecord, &Path)> = BTreeMap::new();
    let mut place: Option<(Repository, &Path)> = None;
    for path in paths {
        let record = Record::read(path)?;
        ensure!(!record.images.is_empty(), "merge {}: the record names no image", path.display());
        for leg in record.images {
            let repository = pushed_to(&leg, path)?;
            ensure!(!leg.platforms.is_empty(), "merge {}: {}: the record names no platform", path.display(), leg.name);
            let (expected, first) = place.get_or_insert_with(|| (repository.clone(), path));
            ensure!(
                *expected == repository,
                "merge {}: expected legs in {expected} as in {}, found {repository}",
                path.display(),
                first.display()
            );
            match images.get_mut(&leg.name) {
                None => drop(images.insert(leg.name.clone(), (leg, path))),
                Some((image, first)) => {
                    add(image, leg).with_context(|| format!("merge {} with {}", path.display(), first.display()))?;
                }
            }
        }
    }
    let (repository, _) = place.context("merge: expected records, found none")?;
    let images: Vec<_> = images.into_values().map(|(image, _)| image).collect();
    Ok((images, repository))
}

fn pushed_to(leg: &ImageRecord, path: &Path) -> Result<Repository> {
    let publication = leg.published.as_ref().with_context(|| {
        format!(
            "merge {}: {} was not pushed\nhint: cargo xtask build-images --push REPOSITORY --push-by-digest",
            path.display(),
            leg.name
        )
    })?;
    Ok(Repository::parse(&publication.repository)?)
}

/// Adds a leg's platforms. Error: the legs are of different bases, tags, types or definitions, or both have a platform.
fn add(image: &mut ImageRecord, leg: ImageRecord) -> Result<()> {
    let facts = |of: &ImageRecord| {
        [
            ("base", base(of)),
            ("platforms of its definition", of.listed.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
            ("tags", of.tags.join(", ")),
            ("floating", of.floating.to_string()),
            ("format", format!("{:?}", of.format)),
        ]
    };
    for ((what, expected), (_, found)) in facts(image).into_iter().zip(facts(&leg)) {
        ensure!(expected == found, "compare legs of {}: {what}: expected {expected}, found {found}", image.name);
    }
    // The digests of a stand-in's legs differ: that of the first platform's leg stays, whichever record is named first.
    if leg.platforms.keys().next() < image.platforms.keys().next() {
        image.base.digest = leg.base.digest;
    }
    for (platform, record) in leg.platforms {
        if image.platforms.contains_key(&platform) {
            bail!("compare legs of {}: {platform}: expected one leg, found two", image.name);
        }
        image.platforms.insert(platform, record);
    }
    Ok(())
}

/// What two legs' bases must have in common. A stand-in is built of one platform at a time, so that its digest is of the leg's own
/// platforms alone: its packages tell whether it is the same.
fn base(image: &ImageRecord) -> String {
    match image.base.source {
        SourceRecord::Registry => {
            image.base.identity().map(|(name, digest)| format!("{name} {digest}")).unwrap_or_default()
        }
        SourceRecord::Scratch => image.base.name.clone(),
        SourceRecord::Standin => format!("{} of {}", image.base.name, image.base.packages.join(" ")),
    }
}

/// Error: no leg has a platform that the definition lists.
fn whole(image: &ImageRecord) -> Result<()> {
    for listed in &image.listed {
        let there = image.platforms.keys().any(|built| built.is_same_as(listed));
        ensure!(
            there,
            "merge {}: expected a leg for each platform of its definition, found none for {listed}\n\
             hint: name that leg's record too; --allow-missing-platforms publishes an index without it",
            image.name
        );
    }
    Ok(())
}
