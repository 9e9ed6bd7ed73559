//! The prompts that texts are proved on.

use paceline::TokenId;
use paceline_checkpoint::Tokenizer;

use crate::draws;
use crate::failure::Failure;

/// Windows up to this one are tried from all sides; larger ones cost too much for that.
const SMALL_WINDOW: usize = 128;

/// Text that a model with a tokenizer continues.
const PROSE: &str = "Tell me a short story about a fox who lived by a river. Once there was a little fox, and every morning she \
    looked for something to eat. One day she met a heron who could not fly. What did the fox say, and what did the heron answer? \
    Then name the capital of France, count from one to ten, and write a JSON object with a name and an age. After that, list three \
    animals that live in the sea, say what 17 + 25 is, and explain in one sentence why the sky is blue at noon and red at dusk. ";

/// Lengths of the prompts, ascending: short ones and some around the smallest window, which all leave room for `n` tokens, and the
/// one that is asked for.
pub(super) fn lengths(window: Option<usize>, context: usize, n: usize, more: &Extent) -> Vec<usize> {
    let mut lengths = vec![1, 3, 17, 50];
    match window {
        Some(w) if w <= SMALL_WINDOW || more.thorough => lengths.extend([w - 1, w, w + 1, 3 * w + 2]),
        Some(w) => lengths.extend([w - 1, w + 1]),
        None => lengths.push(130),
    }
    lengths.retain(|&len| len > 0 && len + n <= context);
    lengths.extend(more.prompt_tokens);
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

/// How much is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    /// The whole product instead of a part of it.
    pub(super) thorough: bool,
    /// One more prompt of this length.
    pub(super) prompt_tokens: Option<usize>,
}

/// Prompts of these lengths, all different: pieces of prose, or random ids where there is no tokenizer.
pub(super) fn prompts(
    lengths: &[usize],
    tokenizer: Option<&Tokenizer>,
    vocab_size: usize,
    refused: &[TokenId],
) -> Result<Vec<Vec<TokenId>>, Failure> {
    let prose = tokenizer.map(|tokenizer| tokenizer.encode(PROSE)).transpose()?;
    let prompt = |(index, &len): (usize, &usize)| -> Vec<TokenId> {
        match &prose {
            Some(prose) => {
                let rest = prose[1..].iter().cycle().skip(index * 11);
                prose[..1].iter().chain(rest).take(len).map(|&id| TokenId(id)).collect()
            }
            None => random_ids(index as u64, vocab_size as u64, refused).take(len).collect(),
        }
    };
    Ok(lengths.iter().enumerate().map(prompt).collect())
}

fn random_ids(seed: u64, vocab_size: u64, refused: &[TokenId]) -> impl Iterator<Item = TokenId> {
    let mut state = seed.wrapping_mul(0xD1B5_4A32_D192_ED03);
    std::iter::repeat_with(move || TokenId((draws::next(&mut state) % vocab_size) as u32))
        .filter(|id| !refused.contains(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_stand_around_the_window_and_leave_room() {
        let all = Extent { thorough: true, prompt_tokens: Some(9000) };
        assert_eq!(lengths(Some(16), 1000, 20, &Extent::default()), [1, 3, 15, 16, 17, 50]);
        assert_eq!(lengths(Some(512), 1000, 20, &Extent::default()), [1, 3, 17, 50, 511, 513]);
        assert_eq!(lengths(Some(512), 16384, 20, &all), [1, 3, 17, 50, 511, 512, 513, 1538, 9000]);
        let thorough = Extent { thorough: true, prompt_tokens: None };
        assert_eq!(lengths(Some(1), 40, 20, &thorough), [1, 2, 3, 5, 17]);
        assert_eq!(lengths(None, 256, 20, &Extent::default()), [1, 3, 17, 50, 130]);
    }

    #[test]
    fn random_prompts_differ_and_hold_no_refused_token() {
        let refused: Vec<_> = (0..8).map(TokenId).collect();
        let prompts = prompts(&[1, 40, 41], None, 16, &refused).unwrap();
        assert_eq!(prompts.iter().map(Vec::len).collect::<Vec<_>>(), [1, 40, 41]);
        assert!(prompts.concat().iter().all(|id| (8..16).contains(&id.0)));
        assert_ne!(prompts[1][..], prompts[2][..40]);
    }
}
