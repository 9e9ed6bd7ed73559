//! The tags of a template, before it is parsed.
//!
//! The engine's parser takes more than linear time and one level of recursion for each operator of an expression. So
//! expressions are limited in length before it sees them.

/// Most bytes in the code of one tag; texts in quotes do not count. The published templates have up to 153.
pub(crate) const MAX_TAG_BYTES: usize = 1024;

/// The line of the first tag with more than [`MAX_TAG_BYTES`] of code, if there is one.
pub(crate) fn overlong_tag(source: &str) -> Option<usize> {
    let mut rest = source;
    while let Some(at) = rest.find(['{']) {
        rest = &rest[at..];
        let (n_code, length) = match rest.as_bytes().get(1) {
            Some(b'#') => (0, rest.find("#}").map_or(rest.len(), |end| end + 2)),
            Some(b'{') => tag(rest, "}}"),
            Some(b'%') => tag(rest, "%}"),
            _ => (0, 1),
        };
        if n_code > MAX_TAG_BYTES {
            return Some(1 + source[..source.len() - rest.len()].matches('\n').count());
        }
        rest = &rest[length..];
    }
    None
}

/// Bytes of code and bytes in all of the tag at the beginning of `text`, which ends with `end`.
fn tag(text: &str, end: &str) -> (usize, usize) {
    let bytes = text.as_bytes();
    let (mut n_code, mut at) = (0, 2);
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                // Two quotes are at least an operand, however long the text between them is.
                n_code += 2;
                at += 1;
            }
            _ if bytes[at..].starts_with(end.as_bytes()) => return (n_code, at + 2),
            _ => {
                n_code += 1;
                at += 1;
            }
        }
    }
    (n_code, bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(tag: impl Fn(&str) -> String) -> (Option<usize>, Option<usize>) {
        // Two blanks and a name are around the filling.
        let of = |n: usize| overlong_tag(&format!("a{{b\n{}\n{{{{ x }}}}", tag(&"-".repeat(n))));
        (of(MAX_TAG_BYTES - 3), of(MAX_TAG_BYTES - 2))
    }

    #[test]
    fn only_code_counts() {
        assert_eq!(long(|fill| format!("{{{{ {fill}x }}}}")), (None, Some(2)));
        assert_eq!(long(|fill| format!("{{% {fill}x %}}")), (None, Some(2)));
        assert_eq!(long(|fill| format!("{{# {fill}x #}}{fill}")), (None, None));
        assert_eq!(long(|fill| format!("{{{{ '{fill}}}}}\\'{fill}' ~ \"{fill}\" }}}}")), (None, None));
        assert_eq!(overlong_tag(&"{{ x }}".repeat(1000)), None);
    }

    #[test]
    fn unfinished_tags_end_with_the_text() {
        for source in ["{", "{{", "{%", "{#", "{{ '", "{{ 'a\\", "{{ é", "{% \"\\é", "{{ '\\é' }}"] {
            assert_eq!(overlong_tag(source), None);
        }
        assert_eq!(overlong_tag(&format!("{{{{{}", "x".repeat(2000))), Some(1));
        assert_eq!(overlong_tag(&"{{'a'".repeat(1000)), Some(1));
    }
}
