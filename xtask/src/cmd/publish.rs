//! `publish`: what an earlier run built, judged and recorded goes into a repository. The record says what passed; the layouts beside it
//! hold the bytes.

use anyhow::{Context, Result, bail, ensure};

use super::Outcome;
use crate::args;
use crate::plan::{cache, out_folder};
use crate::record::{ImageRecord, JSON, Record};
use crate::session::{Session, print};
use crate::stages::derived::DerivedImage;
use crate::stages::gate;
use crate::stages::publish::{Age, Publisher};

/// Publishes the named images of the record; all are cleared before the first is sent. stdout names what is in the repository then.
pub(super) fn run(args: &args::Publish, session: &Session) -> Result<Outcome> {
    let out = out_folder(args.out.as_deref(), &session.facts);
    let mut record = Record::read(&out.join(JSON))?;
    ensure!(!record.images.is_empty(), "publish {}: the record names no image", out.join(JSON).display());
    for name in &args.images {
        if !record.images.iter().any(|image| image.name == *name) {
            let recorded: Vec<_> = record.images.iter().map(|image| image.name.as_str()).collect();
            bail!("find image `{name}` in the record: no such image\nhint: it has {}", recorded.join(", "));
        }
    }
    let wanted = |image: &ImageRecord| args.images.is_empty() || args.images.contains(&image.name);
    let named = record.images.iter().filter(|image| wanted(image));
    gate::one_image_a_tag(named.map(|image| (image.name.as_str(), image.tags.as_slice())))?;
    let client = args.registries.client(session)?;
    let cache = cache(&session.facts);
    let publisher = Publisher {
        client: &client,
        to: &args.repository,
        registries: &args.registries,
        move_tags: args.allow.move_tags,
        cache: &cache,
        session,
    };
    let mut cleared = Vec::new();
    for image in record.images.iter_mut().filter(|image| wanted(image)) {
        let pass = gate::clear(image, &args.allow)?;
        // A layer that is not here is the base's, which the publisher fetches if it must.
        let derived = DerivedImage::read(&out.join(&image.name), image.digest, |_, _| true).with_context(|| {
            format!("publish {}: read what was built\nhint: build it again: cargo xtask build-images", image.name)
        })?;
        cleared.push((image, derived, pass));
    }
    Record::check_place(&out)?;
    let mut published = String::new();
    let done: Result<()> = cleared.into_iter().try_for_each(|(image, derived, pass)| {
        publisher.image(image, &derived, &pass, Age::Unknown)?;
        published.push_str(&format!("{}@{}\n", args.repository, image.digest));
        Ok(())
    });
    // What is in the registry is recorded, even if a later image did not get there.
    if !published.is_empty() {
        record.write(&out)?;
    }
    done?;
    print(&if args.json { record.json()? } else { published })?;
    Ok(Outcome::Done)
}
