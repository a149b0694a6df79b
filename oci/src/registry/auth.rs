//! What a registry asks for when it answers 401, and the token that satisfies it. Spec: the distribution project's "Token
//! Authentication Specification"; RFC 9110, section 11.6.1 (`WWW-Authenticate`) and RFC 6750. Parses and remembers only; requests go
//! through the transport.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use reqwest::Url;

use crate::reference::Repository;

/// A request for a bearer token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Challenge {
    realm: Url,
    service: Option<String>,
    scope: Option<String>,
}

impl Challenge {
    /// Parses the value of a `WWW-Authenticate` header; the error says what is wrong with it.
    pub(super) fn parse(header: &str) -> Result<Self, String> {
        let found = || format!("found {header:?}");
        let (scheme, rest) = header.trim().split_once(' ').ok_or_else(found)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(found());
        }
        let parameters = parameters(rest).ok_or_else(found)?;
        let get = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let realm = get("realm").and_then(|realm| Url::parse(&realm).ok()).filter(Url::has_host).ok_or_else(found)?;
        Ok(Self { realm, service: get("service"), scope: get("scope") })
    }

    /// Where to ask for the token that `registry` wants; for pulling from `repository` unless the challenge names another
    /// scope. The error says why the realm will not do.
    pub(super) fn token_url(&self, registry: &Url, repository: &Repository) -> Result<Url, String> {
        if registry.scheme() == "https" && self.realm.scheme() != "https" {
            return Err(format!("expected a token server of https, as the registry is, found {}", self.realm));
        }
        let mut url = self.realm.clone();
        let pull = format!("repository:{}:pull", repository.path());
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = &self.service {
                query.append_pair("service", service);
            }
            query.append_pair("scope", self.scope.as_ref().unwrap_or(&pull));
        }
        Ok(url)
    }
}

/// `token`, or `access_token`, of a token server's JSON answer.
pub(super) fn token(answer: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(answer).ok()?;
    let token = value["token"].as_str().or(value["access_token"].as_str())?;
    // It goes into a header: visible ASCII only.
    (!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())).then(|| token.to_owned())
}

/// The tokens in use, one for each registry address and repository.
#[derive(Debug, Default)]
pub(super) struct Tokens(Mutex<HashMap<(String, String), String>>);

impl Tokens {
    pub(super) fn get(&self, origin: &str, repository: &Repository) -> Option<String> {
        let tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(&(origin.to_owned(), repository.path().to_owned())).cloned()
    }

    pub(super) fn set(&self, origin: &str, repository: &Repository, token: String) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.insert((origin.to_owned(), repository.path().to_owned()), token);
    }
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

    #[test]
    fn challenges_become_token_urls() {
        let repository = Repository::parse("docker").unwrap();
        let registry = Url::parse("http://127.0.0.1:5000").unwrap();
        for (header, url) in [
            (
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/docker:pull""#,
                "https://auth.docker.io/token?service=registry.docker.io&scope=repository%3Alibrary%2Fdocker%3Apull",
            ),
            (
                r#"bearer Realm="https://a/t?x=1" , service=plain"#,
                "https://a/t?x=1&service=plain&scope=repository%3Alibrary%2Fdocker%3Apull",
            ),
            (r#"Bearer realm="http://a/t",scope="a,b\"c",error="invalid_token""#, "http://a/t?scope=a%2Cb%22c"),
        ] {
            let found = Challenge::parse(header).unwrap().token_url(&registry, &repository).unwrap();
            assert_eq!(found.as_str(), url, "{header}");
        }
    }

    #[test]
    fn an_https_registry_has_an_https_token_server() {
        let repository = Repository::parse("docker").unwrap();
        let registry = Url::parse("https://registry.example").unwrap();
        for (realm, fits) in [("https://a/t", true), ("http://a/t", false), ("http://127.0.0.1/t", false)] {
            let challenge = Challenge::parse(&format!(r#"Bearer realm="{realm}""#)).unwrap();
            assert_eq!(challenge.token_url(&registry, &repository).is_ok(), fits, "{realm}");
        }
    }

    #[test]
    fn refuses_all_else() {
        for (bad, why) in [
            ("", "nothing"),
            ("Bearer", "no parameters"),
            (r#"Basic realm="https://a/t""#, "another scheme"),
            ("Bearer service=x", "no realm"),
            (r#"Bearer realm="token""#, "realm is no URL"),
            (r#"Bearer realm="https://a/t"#, "no closing quote"),
            (r#"Bearer realm="https://a/t" service="x""#, "no comma"),
            (r#"Bearer realm="https://a/t\"#, "ends in an escape"),
        ] {
            assert!(Challenge::parse(bad).is_err(), "{why}: {bad:?}");
        }
    }

    #[test]
    fn tokens_are_header_text() {
        for (answer, found) in [
            (r#"{"token":"a.b-c"}"#, Some("a.b-c")),
            (r#"{"access_token":"x","expires_in":300}"#, Some("x")),
            (r#"{"token":""}"#, None),
            (r#"{"token":"a\r\nb"}"#, None),
            (r#"{"token":1}"#, None),
            ("<html>", None),
        ] {
            assert_eq!(token(answer.as_bytes()).as_deref(), found, "{answer}");
        }
    }
}
