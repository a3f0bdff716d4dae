"""A method for `trisect bench docs/lens.py`: activation patching by TransformerLens, where that is installed."""

import copy
from functools import lru_cache

import torch
from transformer_lens.model_bridge import TransformerBridge


@lru_cache(maxsize=1)
def _bridge(model):
    options = {"hf_model": copy.deepcopy(model.model), "tokenizer": model.tokenizer, "device": "cpu"}
    return TransformerBridge.boot_transformers(model.model.config.name_or_path, **options)


def lens_patching(model, texts, site):
    """Activation patching by TransformerLens: how far the answer's logit moves with the donor's hook_q, hook_k or hook_v of a head."""
    bridge, head = _bridge(model), site.heads[0] - 1
    name = f"blocks.{site.layers[0] - 1}.attn.hook_{site.components[0]}"
    sides = zip(*((str(pair.base), str(pair.donor)) for pair in texts), strict=True)
    base, donor = (model.tokenizer(list(side), return_tensors="pt").input_ids for side in sides)
    answers = torch.tensor(model.tokenizer.convert_tokens_to_ids([pair.answers["base"] for pair in texts]))
    _, cache = bridge.run_with_cache(donor, prepend_bos=False)

    def put(tensor, hook):
        tensor[:, :, head] = cache[name][:, :, head]
        return tensor

    with torch.no_grad():
        clean = bridge(base, prepend_bos=False)
        patched = bridge.run_with_hooks(base, fwd_hooks=[(name, put)], prepend_bos=False)
    return float((patched - clean)[:, -1].gather(1, answers[:, None]).abs().mean())
