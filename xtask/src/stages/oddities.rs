//! What is odd about a base and yet no fault: others take such images, so we derive from them too, and say so in one line each.
//! Decides only; what is wrong is an error where it is found.

use oci::{Document, Family, Platform};

use super::base::Image;

/// The oddities of a base's image of one platform, each in words. `document` is what the base's name led to: an index that holds the
/// image, or its manifest.
pub fn of(document: &Document, image: &Image, platform: &Platform) -> Vec<String> {
    [mixed_families(document, image), history(image), other_platform(document, image, platform)]
        .into_iter()
        .flatten()
        .collect()
}

/// Media types of both families in one image, as builders leave them that add a layer of the other one.
fn mixed_families(document: &Document, image: &Image) -> Option<String> {
    let outer = document.descriptor();
    let own = image.manifest.descriptor();
    let top = if matches!(document, Document::Index(_)) { "index" } else { "manifest" };
    let all = [(top, &outer), ("manifest", &own), ("config", image.manifest.config())];
    let all = all.into_iter().chain(image.manifest.layers().iter().map(|layer| ("layer", layer)));
    let first = |family: Family| all.clone().find(|(_, blob)| family.holds(&blob.media_type));
    let ((oci, oci_blob), (docker, docker_blob)) = first(Family::Oci).zip(first(Family::Docker))?;
    let platform = image.config.platform();
    Some(format!(
        "{platform}: media types of two families: {oci} {}, {docker} {}",
        oci_blob.media_type, docker_blob.media_type
    ))
}

/// A history that does not tell of every layer (image-spec `config.md`: the entries that are not `empty_layer` are the layers).
fn history(image: &Image) -> Option<String> {
    let (told, layers) = (image.config.history_layers(), image.config.diff_ids().len());
    let platform = image.config.platform();
    (told != layers)
        .then(|| format!("{platform}: expected {layers} layers in its history, as it has diff ids, found {told}"))
}

/// A configuration that names its platform otherwise than the index does, most often without the variant.
fn other_platform(document: &Document, image: &Image, platform: &Platform) -> Option<String> {
    let Document::Index(index) = document else { return None };
    let named = index.select(platform).ok()?.platform.as_ref()?;
    let found = image.config.platform();
    (named != found)
        .then(|| format!("{named}: expected that platform in the configuration as in the index, found {found}"))
}
