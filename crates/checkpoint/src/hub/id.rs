//! The name of a model on the hub.

use std::fmt;
use std::str::FromStr;

use super::HubError;

/// The revision that is meant when none is given.
const DEFAULT_REVISION: &str = "main";
/// Longest part of an id, in bytes, as the hub has it.
const MAX_PART_BYTES: usize = 96;
/// Longest revision, in bytes: it becomes a path.
const MAX_REVISION_BYTES: usize = 200;

/// `owner/name` or `owner/name@revision`, where the revision is a branch, a tag or a commit.
///
/// Both parts and the revision become paths of the cache, so what could lead elsewhere is no id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubId {
    /// `owner/name`.
    name: String,
    revision: String,
}

impl HubId {
    /// `owner/name`, without the revision.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The branch, tag or commit; `main` when none was given.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Name of the model's folder in the cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}", self.name.replace('/', "--"))
    }

    /// The commit, when the revision is a full one: then nothing can move it.
    pub(super) fn commit(&self) -> Option<&str> {
        is_commit(&self.revision).then_some(&self.revision)
    }
}

impl fmt::Display for HubId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.revision != DEFAULT_REVISION {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

impl FromStr for HubId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<HubId, HubError> {
        let bad = |problem| HubError::BadId { text: text.to_owned(), problem };
        let (name, revision) = text.split_once('@').unwrap_or((text, DEFAULT_REVISION));
        let Some((owner, model)) = name.split_once('/') else {
            return Err(bad("it has no `/`"));
        };
        if !is_part(owner) || !is_part(model) {
            return Err(bad(
                "owner and name begin with a letter or digit and have letters, digits, `-`, `_` and `.`, \
                 but no `..` or `--`",
            ));
        }
        if !is_revision(revision) {
            return Err(bad("the revision is not a branch, a tag or a commit"));
        }
        Ok(HubId { name: name.to_owned(), revision: revision.to_owned() })
    }
}

fn is_part(part: &str) -> bool {
    part.len() <= MAX_PART_BYTES
        && part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !part.ends_with(['-', '.'])
        && !part.contains("..")
        // `--` separates the parts in the cache.
        && !part.contains("--")
}

fn is_revision(revision: &str) -> bool {
    revision.len() <= MAX_REVISION_BYTES
        && revision.split('/').all(|part| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c))
        })
}

/// Whether a text is the full name of a commit.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_an_owner_a_name_and_a_revision() {
        let id: HubId = "google/gemma-4-E2B-it".parse().unwrap();
        assert_eq!((id.name(), id.revision()), ("google/gemma-4-E2B-it", "main"));
        assert_eq!(id.to_string(), "google/gemma-4-E2B-it");
        assert_eq!(id.folder(), "models--google--gemma-4-E2B-it");
        assert_eq!(id.commit(), None);

        let id: HubId = "a_b/c.d@refs/pr/7".parse().unwrap();
        assert_eq!((id.name(), id.revision()), ("a_b/c.d", "refs/pr/7"));
        assert_eq!(id.to_string(), "a_b/c.d@refs/pr/7");

        let commit = "0123456789abcdef0123456789abcdef01234567";
        let id: HubId = format!("a/b@{commit}").parse().unwrap();
        assert_eq!(id.commit(), Some(commit));
    }

    #[test]
    fn what_could_be_another_path_is_no_id() {
        let long = format!("a/{}", "b".repeat(97));
        let texts = [
            "",
            "a",
            "/a",
            "a/",
            "/a/b",
            "a/b/c",
            "./a",
            "../a",
            "a/..",
            "a/b..c",
            "a/-b",
            "a/b-",
            "a--b/c",
            "a/b\0",
            "a b/c",
            "a\\b/c",
            "a/b@",
            "a/b@/x",
            "a/b@x/",
            "a/b@../x",
            "a/b@x/../y",
            "a/b@.x",
            "a/b@x y",
            "a/b@x@y",
            "é/b",
            &long,
        ];
        for text in texts {
            let error = text.parse::<HubId>().unwrap_err();
            assert!(matches!(error, HubError::BadId { .. }), "{text:?}: {error}");
        }
    }
}
