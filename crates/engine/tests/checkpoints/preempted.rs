//! The tiny model with every drafter, while one of its sequences is preempted every third step: nobody's output changes.

use paceline::drafters::NgramLengths;
use paceline::{
    Activation, Completion, Distribution, DraftSource, LogprobOptions, ModelFolder, Request, Sizes, load,
};
use paceline_testkit::paths::asset;

use crate::setup::{draft, open, options_of, run, run_preempted, sizes, tokens};

const CONTEXT: usize = 200;

/// Greedy and sampled requests, some with log-probabilities, all with a prediction that goes wrong.
fn requests() -> Vec<Request> {
    let request = |i: u32| {
        let prompt: Vec<_> = (0..10 + 7 * i).map(|at| 30 + (i * at) % 40).collect();
        let mut request = Request::new(tokens(&prompt), 80 + 3 * i as usize);
        request.ignore_eos = true;
        request.sampling.seed = Some(u64::from(i));
        request.sampling.temperature = if i.is_multiple_of(2) { 0.0 } else { 0.7 };
        request.sampling.repetition_penalty = if i.is_multiple_of(3) { 1.2 } else { 1.0 };
        request.logprobs =
            (i == 3).then_some(LogprobOptions { top: 2, of: Distribution::Model, prompt: true });
        request
    };
    (1..7).map(request).collect()
}

/// What does not depend on drafts.
fn output(completion: &Completion) -> impl PartialEq + std::fmt::Debug {
    let finished = completion.finished.as_ref().unwrap();
    let Completion { token_ids, text, logprobs, prompt_logprobs, .. } = completion.clone();
    (token_ids, text, logprobs, prompt_logprobs, finished.reason, finished.usage, finished.seed)
}

#[test]
fn preemption_every_third_step_changes_nothing_with_any_drafter() {
    let target = ModelFolder::open(&asset("tiny-gemma4")).unwrap();
    let plain_sizes = Sizes { score_prompts: true, ..sizes(CONTEXT, 1, 64, 0) };
    let mut plain = open(&asset("tiny-gemma4"), None, plain_sizes, Activation::Bf16);
    let mut requests = requests();
    let alone: Vec<_> = requests.iter().map(|request| plain.generate(request.clone()).unwrap()).collect();
    for (request, alone) in requests.iter_mut().zip(&alone) {
        request.prediction = alone.token_ids.clone();
        request.prediction[10] = request.prediction[11];
    }
    let [assistant, dflash] =
        ["tiny-gemma4-assistant", "tiny-gemma4-dflash"].map(|name| ModelFolder::open(&asset(name)).unwrap());
    let ngram = || DraftSource::Ngram(NgramLengths::default());
    for (name, sources, n_drafts) in [
        ("nobody", vec![], 0),
        ("assistant", vec![DraftSource::Checkpoint(&assistant)], 4),
        ("dflash", vec![DraftSource::Checkpoint(&dflash)], 7),
        ("model", vec![DraftSource::Checkpoint(&target)], 3),
        ("ngram", vec![ngram()], 5),
        ("prediction", vec![DraftSource::Prediction], 6),
        ("all", vec![DraftSource::Prediction, ngram(), DraftSource::Checkpoint(&assistant)], 4),
    ] {
        let sizes = Sizes { score_prompts: true, ..sizes(CONTEXT, 3, 64, n_drafts) };
        let progress = &mut |_, _| {};
        let options = options_of(&target, sources, sizes, Activation::Bf16, progress);
        let mut engine = load(&target, options).unwrap();
        let undisturbed = run(&mut engine, &requests, 1);
        assert_eq!(engine.status().preemptions, 0);
        let preempted = run_preempted(&mut engine, &requests, 1, 3);
        let n = engine.status().preemptions;
        assert!(n >= 8, "{name}: {n} preemptions");
        for (i, alone) in alone.iter().enumerate() {
            assert_eq!(output(&undisturbed[i]), output(alone), "{name}, request {i}, undisturbed");
            assert_eq!(output(&preempted[i]), output(alone), "{name}, request {i}, preempted");
        }
        if n_drafts > 0 {
            let accepted: u64 = preempted.iter().map(|completion| draft(completion).accepted).sum();
            assert!(accepted > 0, "{name}: nothing was accepted");
        }
    }
}
