//! How every command reaches registries: one client for a run, with the user's mirrors, permissions and credentials. Never asks for
//! anything itself.

use anyhow::{Context, Result};
use oci::{Client, Options, Repository};

use crate::args::Registries;
use crate::session::Session;

impl Registries {
    /// A client; it connects to nothing yet. Error: a host that is none; a mirror that is no URL, holds a password, or is one of plain
    /// http that nobody permitted.
    pub fn client(&self, session: &Session) -> Result<Client> {
        let options = Options {
            mirrors: self.mirror.clone(),
            insecure: self.insecure.clone(),
            secure: self.secure.clone(),
            ca: self.ca.iter().map(|file| session.facts.cwd.join(file)).collect(),
            credentials: session.facts.docker_config.clone(),
            interrupt: session.interrupt.clone(),
            ..Options::default()
        };
        Client::new(options).context("reach registries")
    }

    /// The repository from which blobs of `base` can be mounted into `target`: itself if both are of one registry, or its mirror on
    /// that registry. None: the blobs have to travel.
    pub fn beside(&self, base: &Repository, target: &Repository) -> Option<Repository> {
        if base.registry() == target.registry() {
            return Some(base.clone());
        }
        let mirrors = self.mirror.iter().filter(|(mirrored, _)| mirrored == base.registry());
        let places = mirrors.filter_map(|(_, url)| {
            let place = url.split_once("://")?.1.trim_end_matches('/');
            Repository::parse(&format!("{place}/{}", base.path())).ok()
        });
        places.into_iter().find(|place| place.registry() == target.registry())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_mounted_from_the_base_or_its_mirror() {
        let mirror = vec![("docker.io".to_owned(), "http://127.0.0.1:5000/cache/".to_owned())];
        let registries = Registries { mirror, ..Registries::default() };
        for (base, target, expected) in [
            ("docker", "docker.io/me/dind", Some("docker.io/library/docker")),
            ("docker", "127.0.0.1:5000/dind", Some("127.0.0.1:5000/cache/library/docker")),
            ("docker", "ghcr.io/me/dind", None),
            ("ghcr.io/me/base", "127.0.0.1:5000/dind", None),
            ("ghcr.io/me/base", "ghcr.io/me/base", Some("ghcr.io/me/base")),
        ] {
            let parse = |text| Repository::parse(text).expect("a repository");
            let found = registries.beside(&parse(base), &parse(target)).map(|place| place.to_string());
            assert_eq!(found.as_deref(), expected, "{base} into {target}");
        }
    }
}
