"""Transformers' Trainer runs the loop; what is overridden is one loss and one prediction."""

import torch
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments


class WeightedTrainer(Trainer):
    def __init__(self, *args, weights=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.weights = weights
        self.seen = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weights = torch.tensor(self.weights, device=labels.device)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=weights)
        self.seen.append(loss.item())
        return (loss, outputs) if return_outputs else loss

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad():
            loss, outputs = self.compute_loss(model, inputs, return_outputs=True)
        return loss.detach(), outputs.logits.detach(), None


def main(train_set, eval_set):
    model = AutoModelForSequenceClassification.from_pretrained("bert-base-uncased")
    arguments = TrainingArguments("out", gradient_accumulation_steps=8, per_device_train_batch_size=4)
    trainer = WeightedTrainer(
        model=model, args=arguments, train_dataset=train_set, eval_dataset=eval_set, weights=[1.0, 3.0]
    )
    trainer.train()
    return trainer.evaluate()
