//! Drafters in order on real weights: one that was passed over for some rounds resumes where the text is.

use paceline::drafters::NgramLengths;
use paceline::{Activation, DraftSource, ModelFolder, Request, TokenId, load};
use paceline_testkit::paths::{asset, oracle};

use crate::bad_weights::LARGEST;
use crate::files::{changed, fill};
use crate::setup::{draft, open, options_of, sizes};

/// In a chain behind n-grams, each round of the second drafter accepts what it accepts when it begins there anew.
fn resumes(target: &std::path::Path, drafter: &std::path::Path) {
    let folder = ModelFolder::open(target).unwrap();
    let second = ModelFolder::open(drafter).unwrap();
    let k = 3;
    let ngram = DraftSource::Ngram(NgramLengths::new(1, 3).unwrap());
    let sources = vec![ngram, DraftSource::Checkpoint(&second)];
    let progress = &mut |_, _| {};
    let options = options_of(&folder, sources, sizes(200, 1, 64, k), Activation::Bf16, progress);
    let mut chain = load(&folder, options).unwrap();
    let mut alone = open(target, Some(drafter), sizes(200, 1, 64, k), Activation::Bf16);
    let request = |prompt: &[TokenId], n| {
        let mut request = Request::new(prompt.to_vec(), n);
        request.ignore_eos = true;
        request
    };
    let prompt: Vec<_> = (0..40).map(|i| TokenId(30 + i % 9)).collect();
    let completion = chain.generate(request(&prompt, 90)).unwrap();
    let text = [&prompt[..], &completion.token_ids].concat();
    let draft_of_chain = draft(&completion);
    let mut len = prompt.len();
    let mut n_after_ngram = 0;
    let rounds = draft_of_chain.source_per_round.iter().zip(&draft_of_chain.accepted_per_round);
    let mut before = 1;
    for (&source, &accepted) in rounds {
        // The last rounds have fewer drafts.
        if source == 1 && len + k + 2 < text.len() {
            let fresh = alone.generate(request(&text[..len], k + 2)).unwrap();
            assert_eq!(fresh.token_ids, text[len..len + k + 2]);
            assert_eq!(draft(&fresh).accepted_per_round[0], accepted, "the round at {len}");
            n_after_ngram += usize::from(before == 0);
        }
        before = source;
        len += accepted as usize + 1;
    }
    assert!(n_after_ngram >= 5, "{n_after_ngram} rounds followed one of n-grams: {draft_of_chain:?}");
}

#[test]
fn an_assistant_resumes_behind_rounds_of_ngrams() {
    for target in ["gemma4_e", "gemma4_dense", "gemma4_moe"] {
        resumes(&oracle(target), &oracle(&format!("{target}_assistant")));
    }
    resumes(&asset("tiny-gemma4"), &asset("tiny-gemma4-assistant"));
}

#[test]
fn dflash_resumes_behind_rounds_of_ngrams() {
    resumes(&asset("tiny-gemma4"), &asset("tiny-gemma4-dflash"));
    resumes(&oracle("gemma4_dense"), &oracle("gemma4_dense_dflash"));
}

/// What a drafter makes of the target's pass fails in a round that another one drafted: it is left out, and the other goes on.
#[test]
fn a_context_that_is_not_finite_is_its_own_drafters_fault() {
    let folder = ModelFolder::open(&oracle("gemma4_dense")).unwrap();
    let damaged = changed(&oracle("gemma4_dense_dflash"), |_, weights| fill(weights, "fc.weight", LARGEST));
    let ngram = DraftSource::Ngram(NgramLengths::new(1, 3).unwrap());
    let sources = vec![ngram, DraftSource::Checkpoint(&damaged)];
    let progress = &mut |_, _| {};
    let options = options_of(&folder, sources, sizes(200, 1, 64, 3), Activation::Bf16, progress);
    let mut engine = load(&folder, options).unwrap();
    let prompt: Vec<_> = (0..40).map(|i| TokenId(30 + i % 9)).collect();
    let mut request = Request::new(prompt, 90);
    request.ignore_eos = true;
    let completion = engine.generate(request).unwrap();
    let [ngrams, dflash] = &draft(&completion).sources[..] else { panic!("two sources") };
    assert!(ngrams.rounds > 5 && ngrams.inactive_reason.is_none(), "{ngrams:?}");
    assert!(
        dflash.inactive_reason.as_deref().is_some_and(|reason| reason.contains("not finite")),
        "{dflash:?}"
    );
}

#[test]
fn a_draft_model_resumes_behind_rounds_of_ngrams() {
    resumes(&oracle("gemma4_dense"), &oracle("gemma4_moe"));
}
