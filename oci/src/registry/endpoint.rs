//! Where a registry is: its own host or mirrors, over https or plain http. Decides by names only; connects nowhere.

use std::net::IpAddr;

use reqwest::Url;

use super::Options;
use crate::error::{Error, Result};
use crate::reference::{Repository, is_host};

/// Docker Hub's references name another host than the one that serves them.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// The places of all registries.
#[derive(Debug)]
pub(super) struct Endpoints {
    mirrors: Vec<(String, Url)>,
    insecure: Vec<String>,
    secure: Vec<String>,
}

impl Endpoints {
    /// # Errors
    /// [`Error::Grammar`] for a host that could never be meant, and a mirror that is no http or https URL; [`Error::Userinfo`]
    /// and [`Error::PlainHttp`] for a mirror.
    pub(super) fn new(options: &Options) -> Result<Self> {
        let Options { mirrors, insecure, secure, .. } = options;
        for host in mirrors.iter().map(|(host, _)| host).chain(insecure).chain(secure) {
            if !is_host(host) {
                return Err(Error::Grammar { noun: "registry", text: without_userinfo(host), expected: "HOST[:PORT]" });
            }
        }
        let mut endpoints = Self { mirrors: Vec::new(), insecure: insecure.clone(), secure: secure.clone() };
        for (registry, base) in mirrors {
            let url = Url::parse(base).ok().filter(|url| url.has_host() && matches!(url.scheme(), "http" | "https"));
            let url = url.ok_or_else(|| Error::Grammar {
                noun: "mirror",
                text: without_userinfo(base),
                expected: "an http or https URL",
            })?;
            if has_userinfo(&url) {
                return Err(Error::Userinfo { url: origin(&url) });
            }
            endpoints.check(&url)?;
            endpoints.mirrors.push((registry.clone(), url));
        }
        Ok(endpoints)
    }

    /// The base URLs of the mirrors of a repository's registry, in the order in which to try them.
    pub(super) fn mirrors(&self, repository: &Repository) -> Vec<Url> {
        let mirrors = self.mirrors.iter().filter(|(mirrored, _)| mirrored == repository.registry());
        mirrors.map(|(_, url)| url.clone()).collect()
    }

    /// The base URL of a repository's registry itself.
    pub(super) fn home(&self, repository: &Repository) -> Result<Url> {
        let registry = repository.registry();
        let host = if registry == DOCKER_HUB.0 { DOCKER_HUB.1 } else { registry };
        let parse = |scheme: &str| {
            Url::parse(&format!("{scheme}://{host}/")).map_err(|_| Error::Grammar {
                noun: "registry",
                text: host.to_owned(),
                expected: "HOST[:PORT]",
            })
        };
        let url = parse("http")?;
        if self.permits_http(&url) { Ok(url) } else { parse("https") }
    }

    /// # Errors
    /// [`Error::PlainHttp`] for a URL that would send in clear what should not be.
    pub(super) fn check(&self, url: &Url) -> Result<()> {
        if url.scheme() == "https" || self.permits_http(url) {
            Ok(())
        } else {
            Err(Error::PlainHttp { url: origin(url) })
        }
    }

    fn permits_http(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let with_port = format!("{host}:{}", url.port_or_known_default().unwrap_or_default());
        let is_among = |hosts: &[String]| hosts.iter().any(|named| *named == host || *named == with_port);
        !is_among(&self.secure) && (is_loopback(url) || is_among(&self.insecure))
    }
}

/// `localhost`, 127.0.0.0/8 or `[::1]`, by name: what resolves there is not loopback.
pub(super) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Whether a URL holds a name or password. A reference that somebody else gave is not to be followed then (RFC 9110, section
/// 4.2.4), and one that holds a secret is not to be printed.
pub(super) fn has_userinfo(url: &Url) -> bool {
    !url.username().is_empty() || url.password().is_some()
}

/// What was given as a URL or host and is none, fit for a message: a name and password in it are left out.
fn without_userinfo(text: &str) -> String {
    match text.rsplit_once('@') {
        Some((_, rest)) => format!("…@{rest}"),
        None => text.to_owned(),
    }
}

/// `BASE/v2/PATH`. A base may have a path of its own, as pull-through caches do.
pub(super) fn join(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}/v2/{path}", base.path().trim_end_matches('/')));
    url
}

/// Scheme, host and port, for messages.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints() -> Endpoints {
        let mirrors = [
            ("docker.io".to_owned(), "http://127.0.0.1:5001/cache/".to_owned()),
            ("docker.io".to_owned(), "https://mirror.example".to_owned()),
        ];
        let insecure = vec!["plain.example:5000".to_owned(), "any-port.example".to_owned(), "both.example".to_owned()];
        let secure = vec!["127.0.0.1:6443".to_owned(), "[::1]".to_owned(), "both.example".to_owned()];
        Endpoints::new(&Options { mirrors: mirrors.into(), insecure, secure, ..Options::default() }).unwrap()
    }

    #[test]
    fn registries_are_found_by_name() {
        for (repository, url) in [
            ("docker", "https://registry-1.docker.io/v2/p"),
            ("ghcr.io/a/b", "https://ghcr.io/v2/p"),
            ("localhost/x", "http://localhost/v2/p"),
            ("127.0.0.9:5000/x", "http://127.0.0.9:5000/v2/p"),
            ("localhost:5000/x", "http://localhost:5000/v2/p"),
            ("plain.example:5000/x", "http://plain.example:5000/v2/p"),
            ("plain.example/x", "https://plain.example/v2/p"),
            ("any-port.example:81/x", "http://any-port.example:81/v2/p"),
            ("localhost.example/x", "https://localhost.example/v2/p"),
            ("127.0.0.1:6443/x", "https://127.0.0.1:6443/v2/p"),
            ("127.0.0.1:6444/x", "http://127.0.0.1:6444/v2/p"),
            ("[::1]:6444/x", "https://[::1]:6444/v2/p"),
            ("both.example/x", "https://both.example/v2/p"),
        ] {
            let home = endpoints().home(&Repository::parse(repository).unwrap()).unwrap();
            assert_eq!(join(&home, "p").as_str(), url, "{repository}");
        }
    }

    #[test]
    fn mirrors_keep_their_order_and_paths() {
        for (repository, urls) in
            [("docker", &["http://127.0.0.1:5001/cache/v2/p", "https://mirror.example/v2/p"][..]), ("ghcr.io/a/b", &[])]
        {
            let bases = endpoints().mirrors(&Repository::parse(repository).unwrap());
            let found: Vec<String> = bases.iter().map(|base| join(base, "p").to_string()).collect();
            assert_eq!(found, urls, "{repository}");
        }
    }

    #[test]
    fn mirrors_are_checked_when_named() {
        for (host, base, why) in [
            ("docker.io", "http://mirror.example", "plain http"),
            ("docker.io", "127.0.0.1:5000", "http or https URL"),
            ("docker.io", "ftp://127.0.0.1", "http or https URL"),
            ("docker.io", "", "http or https URL"),
            ("docker.io", "http://u:s3cret@127.0.0.1:6116", "use http://127.0.0.1:6116: expected a URL without a name"),
            (
                "docker.io",
                "https://s3cret@mirror.example/x",
                "use https://mirror.example: expected a URL without a name",
            ),
            ("docker.io", "ftp://u:s3cret@127.0.0.1", "…@127.0.0.1"),
            ("docker.io", "http://u:s3cret@127.0.0.1:99999", "…@127.0.0.1:99999"),
            ("docker.io/library", "https://mirror.example", "expected HOST[:PORT]"),
            ("u:s3cret@docker.io", "https://mirror.example", "expected HOST[:PORT]"),
        ] {
            let mirrors = vec![(host.to_owned(), base.to_owned())];
            let error = Endpoints::new(&Options { mirrors, ..Options::default() }).unwrap_err();
            let (said, shown) = (error.to_string(), format!("{error:?} {:?}", error.hint()));
            assert!(
                said.contains(why) && !said.contains("s3cret") && !shown.contains("s3cret"),
                "{why}: {said} {shown}"
            );
        }
        for options in [
            Options { insecure: vec!["http://a.example".to_owned()], ..Options::default() },
            Options { secure: vec!["a.example/x".to_owned()], ..Options::default() },
        ] {
            assert!(
                matches!(Endpoints::new(&options), Err(Error::Grammar { expected: "HOST[:PORT]", .. })),
                "{options:?}"
            );
        }
    }
}
