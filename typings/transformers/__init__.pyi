# The names of transformers that this project uses, each from the module that defines it. Its own first module imports all of its
# models, and a type checker then reads four thousand files. A name that is missing here is an error of the checker: add it.

from transformers.modeling_utils import AttentionInterface as AttentionInterface
from transformers.modeling_utils import PreTrainedModel as PreTrainedModel
from transformers.models.albert.configuration_albert import AlbertConfig as AlbertConfig
from transformers.models.albert.modeling_albert import AlbertForMaskedLM as AlbertForMaskedLM
from transformers.models.auto.configuration_auto import AutoConfig as AutoConfig
from transformers.models.auto.modeling_auto import AutoModel as AutoModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM as AutoModelForCausalLM
from transformers.models.auto.modeling_auto import AutoModelForMaskedLM as AutoModelForMaskedLM
from transformers.models.auto.modeling_auto import AutoModelForSeq2SeqLM as AutoModelForSeq2SeqLM
from transformers.models.auto.processing_auto import AutoProcessor as AutoProcessor
from transformers.models.auto.tokenization_auto import AutoTokenizer as AutoTokenizer
from transformers.models.bart.configuration_bart import BartConfig as BartConfig
from transformers.models.bart.modeling_bart import BartForConditionalGeneration as BartForConditionalGeneration
from transformers.models.bert.configuration_bert import BertConfig as BertConfig
from transformers.models.bert.modeling_bert import BertForMaskedLM as BertForMaskedLM
from transformers.models.bert.modeling_bert import BertLMHeadModel as BertLMHeadModel
from transformers.models.bert.modeling_bert import BertModel as BertModel
from transformers.models.gpt2.configuration_gpt2 import GPT2Config as GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel as GPT2LMHeadModel
from transformers.models.llama.configuration_llama import LlamaConfig as LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM as LlamaForCausalLM
from transformers.models.mamba.configuration_mamba import MambaConfig as MambaConfig
from transformers.models.mamba.modeling_mamba import MambaForCausalLM as MambaForCausalLM
from transformers.models.marian.configuration_marian import MarianConfig as MarianConfig
from transformers.models.t5gemma.configuration_t5gemma import T5GemmaConfig as T5GemmaConfig
from transformers.models.t5gemma.configuration_t5gemma import T5GemmaModuleConfig as T5GemmaModuleConfig
from transformers.models.t5gemma.modeling_t5gemma import (
    T5GemmaForConditionalGeneration as T5GemmaForConditionalGeneration,
)
from transformers.models.vit.configuration_vit import ViTConfig as ViTConfig
from transformers.models.vit.modeling_vit import ViTModel as ViTModel
from transformers.models.xlm.configuration_xlm import XLMConfig as XLMConfig
from transformers.models.xlm.modeling_xlm import XLMWithLMHeadModel as XLMWithLMHeadModel
from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast as PreTrainedTokenizerFast

__version__: str
