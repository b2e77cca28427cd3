"""Twice the input, after a while that is the same for one request and for a batch of them; negative inputs break it."""

import time

import triton_python_backend_utils as pb_utils

SECONDS = 0.05


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(SECONDS)
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        if any((values < 0).any() for values in inputs):
            raise ValueError("negative input")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", 2 * values)]) for values in inputs]
