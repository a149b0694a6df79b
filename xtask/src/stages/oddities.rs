//! What is odd about a base and yet no fault: others take such images, so we derive from them too, and say so in one line each.
//! Decides only; what is wrong is an error where it is found.

use oci::{Descriptor, Family, Platform};

use super::base::Image;
use crate::lock::LockedBase;

/// The oddities of a base's image of one platform, each in words. `locked` is what the base's name led to.
pub fn of(locked: &LockedBase, image: &Image, platform: &Platform) -> Vec<String> {
    [mixed_families(locked, image), history(image), other_platform(locked, image, platform)]
        .into_iter()
        .flatten()
        .collect()
}

/// Media types of both families in one image, as builders leave them that add a layer of the other one.
fn mixed_families(locked: &LockedBase, image: &Image) -> Option<String> {
    let index = (!locked.platforms.is_empty()).then_some(locked.format).flatten();
    let own = image.manifest.descriptor();
    let blobs = [("manifest", &own), ("config", image.manifest.config())].into_iter();
    let blobs = blobs.chain(image.manifest.layers().iter().map(|layer| ("layer", layer)));
    let first = |family: Family| {
        let named = |(what, blob): (&str, &Descriptor)| format!("{what} {}", blob.media_type);
        let blob = blobs.clone().find(|(_, blob)| family.holds(&blob.media_type)).map(named);
        if index == Some(family) { Some("the index".to_owned()) } else { blob }
    };
    let (oci, docker) = first(Family::Oci).zip(first(Family::Docker))?;
    Some(format!("{}: media types of two families: OCI's: {oci}; Docker's: {docker}", image.config.platform()))
}

/// A history that does not tell of every layer (image-spec `config.md`: the entries that are not `empty_layer` are the layers).
fn history(image: &Image) -> Option<String> {
    let (told, layers) = (image.config.history_layers(), image.config.diff_ids().len());
    let platform = image.config.platform();
    (told != layers)
        .then(|| format!("{platform}: expected {layers} layers in its history, as it has diff ids, found {told}"))
}

/// A configuration that names its platform otherwise than the index does, most often without the variant.
fn other_platform(locked: &LockedBase, image: &Image, platform: &Platform) -> Option<String> {
    let (named, _) = locked.child(platform)?;
    let found = image.config.platform();
    (named != found)
        .then(|| format!("{named}: expected that platform in the configuration as in the index, found {found}"))
}
