// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the Debian mirror that apt already uses: reads `sources.list` and `sources.list.d/*` in both formats.
//!
//! Not here: talking to the mirror. No host is named in this program; if apt has none, neither have we.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// One archive as apt knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Source {
    pub uris: Vec<String>,
    pub suites: Vec<String>,
    pub components: Vec<String>,
    /// A key ring's path, or a key block with its line breaks.
    pub signed_by: Option<String>,
}

/// The mirrors to take packages from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mirrors {
    pub main: Source,
    /// The security archive, if apt has it.
    pub security: Option<Source>,
}

/// Names by which Debian's suites are called; what follows a dash (updates, security, ...) is not looked at.
const DEBIAN_SUITES: [&str; 9] = [
    "bookworm",
    "trixie",
    "forky",
    "bullseye",
    "sid",
    "oldstable",
    "stable",
    "testing",
    "unstable",
];

impl Mirrors {
    /// Looks through apt's configuration folder, normally `/etc/apt`.
    ///
    /// # Errors
    /// [`Error::NoMirror`] when no source has one of Debian's suites.
    pub(crate) fn discover(etc_apt: &Path) -> Result<Mirrors> {
        let mut files = vec![etc_apt.join("sources.list")];
        if let Ok(entries) = fs::read_dir(etc_apt.join("sources.list.d")) {
            let mut parts: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
            parts.sort();
            files.extend(parts);
        }
        let mut sources = Vec::new();
        for file in files {
            let Ok(text) = fs::read_to_string(&file) else {
                continue;
            };
            match file.extension().and_then(|ext| ext.to_str()) {
                Some("list") => sources.extend(parse_one_line(&text)),
                Some("sources") => sources.extend(parse_deb822(&text)),
                _ => {}
            }
        }
        Mirrors::choose(sources).ok_or_else(|| Error::NoMirror {
            looked_in: etc_apt.to_path_buf(),
        })
    }

    fn choose(sources: Vec<Source>) -> Option<Mirrors> {
        let of = |security: bool| {
            let has = |source: &&Source| {
                source
                    .components
                    .iter()
                    .any(|component| component == "main")
                    && source
                        .suites
                        .iter()
                        .any(|suite| is_debian(suite) && is_security(suite) == security)
            };
            sources.iter().find(has).cloned()
        };
        Some(Mirrors {
            main: of(false)?,
            security: of(true),
        })
    }

    /// The deb822 text with the suites of one release: itself, its backports, and its security suite.
    pub(crate) fn stanzas(&self, release: &str) -> String {
        let mut text = stanza(&self.main, &format!("{release} {release}-backports"));
        if let Some(security) = &self.security {
            text.push('\n');
            text.push_str(&stanza(security, &format!("{release}-security")));
        }
        text
    }
}

fn is_debian(suite: &str) -> bool {
    let base = suite.split(['-', '/']).next().unwrap_or_default();
    DEBIAN_SUITES.contains(&base)
}

fn is_security(suite: &str) -> bool {
    suite.ends_with("-security") || suite.ends_with("/updates")
}

fn stanza(source: &Source, suites: &str) -> String {
    let mut text = format!(
        "Types: deb\nURIs: {}\nSuites: {suites}\nComponents: main\n",
        source.uris.join(" ")
    );
    if let Some(key) = &source.signed_by {
        text.push_str(&format!("Signed-By: {key}\n"));
    }
    text
}

/// URIs that a private apt state can use; a CD-ROM needs apt's own mount table.
fn usable(uri: &str) -> bool {
    !uri.starts_with("cdrom:")
}

/// Reads the classic format, one `deb [options] URI SUITE COMPONENT...` a line.
pub(crate) fn parse_one_line(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let rest = line.strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t', '[']) {
        return None;
    }
    let mut rest = rest.trim_start();
    let mut signed_by = None;
    if let Some(inside) = rest.strip_prefix('[') {
        let (options, after) = inside.split_once(']')?;
        signed_by = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .map(str::to_string);
        rest = after;
    }
    let mut words = rest.split_whitespace().map(str::to_string);
    let uri = words.next().filter(|uri| usable(uri))?;
    Some(Source {
        uris: vec![uri],
        suites: vec![words.next()?],
        components: words.collect(),
        signed_by,
    })
}

/// Reads the deb822 format: stanzas of `Field: value`, continued by lines that start with a blank.
pub(crate) fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            sources.extend(source_of(&fields));
            fields.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_ascii_lowercase(), value.trim().to_string()));
        }
    }
    sources
}

fn source_of(fields: &[(String, String)]) -> Option<Source> {
    let field = |wanted: &str| {
        fields
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.as_str())
    };
    let words = |wanted: &str| -> Vec<String> {
        field(wanted)
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_string)
            .collect()
    };
    let enabled = !field("enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
    let uris: Vec<String> = words("uris")
        .into_iter()
        .filter(|uri| usable(uri))
        .collect();
    if !enabled || uris.is_empty() || !words("types").iter().any(|kind| kind == "deb") {
        return None;
    }
    Some(Source {
        uris,
        suites: words("suites"),
        components: words("components"),
        signed_by: field("signed-by").map(str::to_string),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_format() {
        let text = "# deb http://old bookworm main\n\
                    deb-src http://a bookworm main\n\
                    deb cdrom:[Debian]/ bookworm main\n\
                    deb [arch=amd64 signed-by=/k.gpg] http://a/debian bookworm main contrib # note\n";
        let sources = parse_one_line(text);
        assert_eq!(sources.len(), 1);
        assert_eq!(sources[0].uris, ["http://a/debian"]);
        assert_eq!(sources[0].suites, ["bookworm"]);
        assert_eq!(sources[0].components, ["main", "contrib"]);
        assert_eq!(sources[0].signed_by.as_deref(), Some("/k.gpg"));
    }

    #[test]
    fn deb822_format_with_key_block_and_disabled_stanza() {
        let text = "Types: deb deb-src\n# remark\nURIs: http://a/debian\nSuites: bookworm\n bookworm-updates\n\
                    Components: main\nSigned-By:\n -----BEGIN\n .\n -----END\n\nEnabled: no\nTypes: deb\n\
                    URIs: http://b\nSuites: trixie\nComponents: main\n";
        let sources = parse_deb822(text);
        assert_eq!(sources.len(), 1);
        assert_eq!(sources[0].suites, ["bookworm", "bookworm-updates"]);
        assert_eq!(
            sources[0].signed_by.as_deref(),
            Some("\n -----BEGIN\n .\n -----END")
        );
    }

    #[test]
    fn mirrors_skip_foreign_archives_and_tell_security_apart() {
        let text = "deb http://foreign nodistro main\ndeb http://s/sec bookworm-security main\n\
                    deb http://m/debian bookworm-updates main\n";
        let mirrors = Mirrors::choose(parse_one_line(text)).unwrap();
        assert_eq!(mirrors.main.uris, ["http://m/debian"]);
        assert_eq!(mirrors.security.as_ref().unwrap().uris, ["http://s/sec"]);
        let stanzas = mirrors.stanzas("trixie");
        assert!(stanzas.contains("Suites: trixie trixie-backports\n"));
        assert!(stanzas.contains("URIs: http://s/sec\nSuites: trixie-security\n"));
        assert!(Mirrors::choose(parse_one_line("deb http://u jammy main\n")).is_none());
    }

    #[test]
    fn no_mirror_is_a_sentence() {
        let temp = tempfile::tempdir().unwrap();
        let error = Mirrors::discover(temp.path()).unwrap_err();
        assert!(error.to_string().starts_with("no Debian mirror found"));
    }
}
