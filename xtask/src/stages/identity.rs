//! What a base says of itself in labels and annotations, and what would be false of an image that is derived from it: its version, its
//! source, its title. Those names are dropped; whatever else the base says is kept to the letter.

/// The namespaces whose every name speaks of the one image that carries it: image-spec `annotations.md`, "Pre-Defined Annotation Keys",
/// and its forerunner, which that page maps onto them ("Back-compatibility with Label Schema").
const NAMESPACES: [&str; 2] = ["org.opencontainers.image.", "org.label-schema."];

/// Whether a label or annotation that a base carries may stay on what is derived from it.
pub fn may_stay(name: &str) -> bool {
    !NAMESPACES.iter().any(|namespace| name.starts_with(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_base_go_and_all_others_stay() {
        for (name, stays) in [
            ("org.opencontainers.image.version", false),
            ("org.opencontainers.image.base.digest", false),
            ("org.label-schema.vcs-ref", false),
            ("org.opencontainers.artifact.created", true),
            ("org.label-schemata", true),
            ("maintainer", true),
            ("version", true),
        ] {
            assert_eq!(may_stay(name), stays, "{name}");
        }
    }
}
