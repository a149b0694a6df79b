//! What a registry asks for when it answers 401, and whom we trust with the answer. Spec: the distribution project's "Token
//! Authentication Specification"; RFC 9110, section 11.6.1 (`WWW-Authenticate`); RFC 6750; RFC 7617. Parses and decides only;
//! requests go through the transport.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::Url;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

use super::endpoint;
use crate::reference::Repository;

/// Docker Hub's registry, and the token server that may have its users' passwords.
const DOCKER_HUB: (&str, &str) = ("registry-1.docker.io", "auth.docker.io");
/// Where clouds tell a machine its own secrets, beside the link-local addresses: no token server is there.
const METADATA_HOST: &str = "metadata.google.internal";
const METADATA_ADDRESSES: [IpAddr; 4] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// What a request wants to do, and at which registry.
#[derive(Clone, Debug)]
pub(super) struct Access {
    /// The registry's base URL: Authorization goes to its origin only.
    pub(super) home: Url,
    scopes: Vec<String>,
}

impl Access {
    /// Reading from `repository`.
    pub(super) fn pull(home: &Url, repository: &Repository) -> Self {
        Self { home: home.clone(), scopes: vec![format!("repository:{}:pull", repository.path())] }
    }

    /// Reading from and writing to `repository`.
    pub(super) fn push(home: &Url, repository: &Repository) -> Self {
        Self { home: home.clone(), scopes: vec![format!("repository:{}:pull,push", repository.path())] }
    }

    /// Writing to `to` what is read from `from`.
    pub(super) fn mount(home: &Url, from: &Repository, to: &Repository) -> Self {
        let mut access = Self::push(home, to);
        access.scopes.extend(Self::pull(home, from).scopes);
        access
    }

    /// Scopes of the token specification: `repository:PATH:ACTION[,ACTION]`.
    pub(super) fn scopes(&self) -> &[String] {
        &self.scopes
    }

    fn is_pull(&self) -> bool {
        self.scopes.iter().all(|scope| scope.ends_with(":pull"))
    }
}

/// What a registry wants to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A name and password.
    Basic,
    /// A token.
    Bearer(Bearer),
}

/// Where a token is to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bearer {
    pub(super) realm: Url,
    pub(super) service: Option<String>,
    scope: Option<String>,
}

impl Challenge {
    /// The challenge of a 401 that we can answer: a token before a password. The error says what is there instead.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, String> {
        let values: Vec<_> =
            headers.get_all(WWW_AUTHENTICATE).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        let mut found = Err("found none".to_owned());
        for value in &values {
            match Self::parse(value) {
                Ok(Self::Bearer(bearer)) => return Ok(Self::Bearer(bearer)),
                other if found.is_err() => found = other,
                _ => {}
            }
        }
        found
    }

    /// Parses the value of a `WWW-Authenticate` header; the error says what is wrong with it.
    fn parse(header: &str) -> Result<Self, String> {
        let found = || format!("found {header:?}");
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Ok(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(found());
        }
        let parameters = parameters(rest).ok_or_else(found)?;
        let get = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let realm = get("realm").and_then(|realm| Url::parse(&realm).ok()).filter(Url::has_host).ok_or_else(found)?;
        if endpoint::has_userinfo(&realm) {
            return Err("found a token server with a name or password in its URL".to_owned());
        }
        Ok(Self::Bearer(Bearer { realm, service: get("service"), scope: get("scope") }))
    }

    /// The same without what concerns one request only.
    pub(super) fn lasting(&self) -> Self {
        match self {
            Self::Basic => Self::Basic,
            Self::Bearer(bearer) => Self::Bearer(Bearer { scope: None, ..bearer.clone() }),
        }
    }
}

impl Bearer {
    /// What to ask the token server for: the scopes of `access`, each a parameter of its own. A registry that names another
    /// scope for reading knows its repositories by other names than we, as caches do; for writing its scope is added.
    pub(super) fn scopes(&self, access: &Access) -> Vec<String> {
        let asked = self.scope.iter().flat_map(|scope| scope.split(' ')).filter(|scope| !scope.is_empty());
        let mut scopes: Vec<String> =
            if access.is_pull() && self.scope.is_some() { Vec::new() } else { access.scopes.clone() };
        for scope in asked {
            if !scopes.iter().any(|held| covers(held, scope)) {
                scopes.push(scope.to_owned());
            }
        }
        scopes
    }

    /// Whether this token server may be spoken to at all. The error says why not: a registry chooses the URL, so it could
    /// make us send what identifies us in clear, or knock at addresses that only this machine can reach.
    pub(super) fn check(&self, registry: &Url) -> Result<(), String> {
        if registry.scheme() == "https" && self.realm.scheme() != "https" {
            return Err(format!("expected a token server of https, as the registry is, found {}", self.realm));
        }
        if host(&self.realm) != host(registry) && is_internal(host(&self.realm)) {
            return Err(format!("expected a token server, found the link-local or metadata address {}", self.realm));
        }
        Ok(())
    }

    /// Whether this token server may see the credentials for `registry`: it is the registry's own host, Docker Hub's, or
    /// one of `listed`, which are pairs of a registry (`HOST` or `HOST:PORT`) and its token server's host.
    pub(super) fn is_trusted(&self, registry: &Url, listed: &[(String, String)]) -> bool {
        let (realm, home) = (host(&self.realm), host(registry));
        let with_port = format!("{home}:{}", registry.port_or_known_default().unwrap_or_default());
        realm == home
            || (home, realm) == DOCKER_HUB
            || listed.iter().any(|(name, server)| server == realm && (name == home || *name == with_port))
    }
}

/// Whether a token for `held` is good for `wanted`: the same resource, and all of its actions.
pub(super) fn covers(held: &str, wanted: &str) -> bool {
    match (held.rsplit_once(':'), wanted.rsplit_once(':')) {
        (Some((resource, held)), Some((other, wanted))) => {
            resource == other && wanted.split(',').all(|action| held.split(',').any(|has| has == action))
        }
        _ => held == wanted,
    }
}

fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

fn is_internal(host: &str) -> bool {
    host.parse().map_or_else(|_| host.trim_end_matches('.') == METADATA_HOST, is_internal_address)
}

/// Whether no token server can have this address: it is link-local, a cloud's metadata service, or none at all.
pub(super) fn is_internal_address(address: IpAddr) -> bool {
    let link_local = match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local() || address.is_unspecified(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_unspecified(),
    };
    link_local || METADATA_ADDRESSES.contains(&address.to_canonical())
}

/// `key=value` or `key="value"`, separated by commas; keys in lower case.
fn parameters(text: &str) -> Option<Vec<(String, String)>> {
    let mut list = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let end = after.find(',').unwrap_or(after.len());
                (after[..end].trim().to_owned(), &after[end..])
            }
        };
        list.push((key.trim().to_ascii_lowercase(), value));
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(list)
}

/// The rest of a quoted string, and what follows its closing quote (RFC 9110, section 5.6.4).
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(header: &str) -> Bearer {
        let Ok(Challenge::Bearer(bearer)) = Challenge::parse(header) else { panic!("{header}") };
        bearer
    }

    #[test]
    fn challenges_name_a_token_server_and_scopes() {
        let repository = Repository::parse("docker").unwrap();
        let registry = Url::parse("http://127.0.0.1:5000").unwrap();
        let (pull, push) = (Access::pull(&registry, &repository), Access::push(&registry, &repository));
        for (header, realm, service, access, scopes) in [
            (
                r#"Bearer realm="https://a/token",service="s",scope="repository:library/docker:pull""#,
                "https://a/token",
                Some("s"),
                &pull,
                &["repository:library/docker:pull"][..],
            ),
            (
                r#"bearer Realm="https://a/t?x=1" , service=plain"#,
                "https://a/t?x=1",
                Some("plain"),
                &pull,
                &["repository:library/docker:pull"],
            ),
            (
                r#"Bearer realm="http://a/t",scope="a,b\"c",error="invalid_token""#,
                "http://a/t",
                None,
                &pull,
                &["a,b\"c"],
            ),
            (
                r#"Bearer realm="http://a/t",scope="repository:library/docker:push other:x:pull""#,
                "http://a/t",
                None,
                &push,
                &["repository:library/docker:pull,push", "other:x:pull"],
            ),
        ] {
            let found = bearer(header);
            assert_eq!((found.realm.as_str(), found.service.as_deref()), (realm, service), "{header}");
            assert_eq!(found.scopes(access), scopes, "{header}");
        }
    }

    #[test]
    fn f33_a_mount_asks_both_scopes() {
        let [from, to] = ["h.example/a", "h.example/b"].map(|name| Repository::parse(name).unwrap());
        let access = Access::mount(&Url::parse("https://h.example").unwrap(), &from, &to);
        assert_eq!(access.scopes(), ["repository:b:pull,push", "repository:a:pull"]);
    }

    #[test]
    fn f45_token_servers_are_judged() {
        for (registry, realm, fits) in [
            ("https://registry.example", "https://a/t", true),
            ("https://registry.example", "http://a/t", false),
            ("https://registry.example", "http://127.0.0.1/t", false),
            ("http://127.0.0.1:5000", "http://127.0.0.1:5001/t", true),
            ("https://registry.example", "https://169.254.169.254/latest", false),
            ("https://registry.example", "https://0xa9fea9fe/latest", false),
            ("https://registry.example", "https://[fe80::1]/t", false),
            ("https://registry.example", "https://[::ffff:169.254.169.254]/t", false),
            ("https://registry.example", "https://[fd00:ec2::254]/t", false),
            ("https://registry.example", "https://[fd20:ce::254]/t", false),
            ("https://registry.example", "https://[::ffff:100.100.100.200]/t", false),
            ("https://registry.example", "https://100.100.100.201/t", true),
            ("https://registry.example", "https://metadata.google.internal/t", false),
            ("https://registry.example", "https://metadata.google.internal./t", false),
            ("http://169.254.1.1:5000", "http://169.254.1.1:5001/t", true),
        ] {
            let registry = Url::parse(registry).unwrap();
            assert_eq!(bearer(&format!(r#"Bearer realm="{realm}""#)).check(&registry).is_ok(), fits, "{realm}");
        }
    }

    #[test]
    fn f45_credentials_go_to_the_registrys_host_or_a_listed_one() {
        let listed = [("r.example:444".to_owned(), "login.example".to_owned())];
        for (registry, realm, trusted) in [
            ("https://r.example", "https://r.example:8443/t", true),
            ("https://r.example", "https://login.example/t", false),
            ("https://r.example:444", "https://login.example/t", true),
            ("https://r.example", "https://r.example.evil/t", false),
            ("https://registry-1.docker.io", "https://auth.docker.io/token", true),
            ("https://r.example", "https://auth.docker.io/token", false),
        ] {
            let registry = Url::parse(registry).unwrap();
            let found = bearer(&format!(r#"Bearer realm="{realm}""#)).is_trusted(&registry, &listed);
            assert_eq!(found, trusted, "{registry} {realm}");
        }
    }

    #[test]
    fn a_token_is_preferred_to_a_password() {
        let headers = |values: &[&'static str]| -> HeaderMap {
            values.iter().map(|value| (WWW_AUTHENTICATE, reqwest::header::HeaderValue::from_static(value))).collect()
        };
        let token = r#"Bearer realm="https://a/t""#;
        assert!(matches!(Challenge::of(&headers(&["Basic realm=x", token])), Ok(Challenge::Bearer(_))));
        assert_eq!(Challenge::of(&headers(&["Negotiate", "basic"])), Ok(Challenge::Basic));
        assert_eq!(Challenge::of(&headers(&["Negotiate"])), Err(r#"found "Negotiate""#.to_owned()));
        assert_eq!(Challenge::of(&headers(&[])), Err("found none".to_owned()));
    }

    #[test]
    fn refuses_all_else() {
        for (bad, why) in [
            ("", "nothing"),
            ("Bearer", "no parameters"),
            ("Negotiate x", "another scheme"),
            ("Bearer service=x", "no realm"),
            (r#"Bearer realm="token""#, "realm is no URL"),
            (r#"Bearer realm="https://a/t"#, "no closing quote"),
            (r#"Bearer realm="https://a/t" service="x""#, "no comma"),
            (r#"Bearer realm="https://a/t\"#, "ends in an escape"),
            (r#"Bearer realm="https://r.example@evil/t""#, "a name in the realm"),
            (r#"Bearer realm="https://u:s3cret@a/t""#, "a password in the realm"),
        ] {
            let problem = Challenge::parse(bad).expect_err(why);
            assert!(!problem.contains("s3cret"), "{problem}");
        }
    }

    #[test]
    fn scopes_cover_their_parts() {
        for (held, wanted, covered) in [
            ("repository:a:pull,push", "repository:a:pull", true),
            ("repository:a:pull,push", "repository:a:push,pull", true),
            ("repository:a:pull", "repository:a:pull,push", false),
            ("repository:ab:pull", "repository:a:pull", false),
            ("odd", "odd", true),
        ] {
            assert_eq!(covers(held, wanted), covered, "{held} {wanted}");
        }
    }
}
